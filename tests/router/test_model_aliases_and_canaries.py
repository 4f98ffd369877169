"""ModelRoutes: aliases, canaries by session, routes without replicas, and errors of what users write."""

from collections import Counter

import pytest

from chairlift.core.errors import ConfigError, ModelNotFound
from chairlift.router.model_aliases_and_canaries import ModelRoutes
from support_shares import for_each

CANARY = "chat-large=llama-70b:95,llama-70b-next:5"
POOLS = {"llama-70b", "llama-70b-next", "small"}


def shares(routes: ModelRoutes, model: str, pools: set[str] = POOLS, count: int = 10_000) -> dict[str, float]:
    chosen = Counter(routes.choose(model, f"session-{n}", pools) for n in range(count))
    return {name: number / count for name, number in chosen.items()}


@for_each(
    ("spec", "routes"),
    [
        (CANARY, {"chat-large": (("llama-70b", 95.0), ("llama-70b-next", 5.0))}),
        ("gpt-4o=small", {"gpt-4o": (("small", 1.0),)}),
        (" a = b : 2 , c ", {"a": (("b", 2.0), ("c", 1.0))}),
        ("a=qwen2.5:7b", {"a": (("qwen2.5:7b", 1.0),)}),
        ("a=llama:70:1", {"a": (("llama:70", 1.0),)}),
        ("a=qwen2.5:7b:30,org/b:0", {"a": (("qwen2.5:7b", 30.0), ("org/b", 0.0))}),
    ],
)
def test_a_route_is_parsed(spec: str, routes: dict[str, object]) -> None:
    assert ModelRoutes.parse([spec]).routes == routes


@for_each(
    ("specs", "message"),
    [
        (["llama"], "'llama' must look like chat-large="),
        (["=llama"], "must look like"),
        (["a="], "target without a model name"),
        (["a=b,,c"], "target without a model name"),
        (["a=:5"], "target without a model name"),
        (["a=b:-1"], "weight of 'b' must be between 0 and 1e\\+06, got -1"),
        (["a=b:nan"], "weight of 'b' must be between"),
        (["a=b:inf"], "weight of 'b' must be between"),
        (["a=b:0,c:0"], "gives every model the weight 0"),
        (["a=b:1,b:2"], "names 'b' twice"),
        (["a=b", "a=c"], "'a' has a route already"),
        (["a=b", "b=c", "c=a"], "'a' leads back to itself: a → b → c → a"),
    ],
)
def test_a_route_that_makes_no_sense_is_rejected_with_its_text(specs: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelRoutes.parse(specs)


def test_a_name_without_a_route_is_the_pool_of_this_name() -> None:
    assert ModelRoutes.parse([]).choose("small", "s", POOLS) == "small"


def test_an_alias_leads_through_other_routes_to_a_pool() -> None:
    routes = ModelRoutes.parse(["gpt-4o=chat", "chat=small"])
    assert routes.choose("gpt-4o", "s", POOLS) == "small"


def test_the_pools_of_a_name_are_those_of_its_targets_that_have_a_replica() -> None:
    routes = ModelRoutes.parse(["a=b,small", "b=llama-70b,gone", "llama-70b=llama-70b,llama-70b-next", "off=b:0,small"])
    assert routes.pools_of("a", POOLS) == {"small", "llama-70b", "llama-70b-next"}
    assert routes.pools_of("llama-70b", {"llama-70b"}) == {"llama-70b"}
    assert routes.pools_of("off", POOLS) == routes.pools_of("small", POOLS) == {"small"}


def test_canary_weights_hold_within_one_percent() -> None:
    measured = shares(ModelRoutes.parse([CANARY]), "chat-large")
    assert measured["llama-70b"] == pytest.approx(0.95, abs=0.01)
    assert measured["llama-70b-next"] == pytest.approx(0.05, abs=0.01)


def test_a_canary_may_stand_in_front_of_the_pool_of_its_own_name() -> None:
    routes = ModelRoutes.parse(["llama-70b=llama-70b:1,llama-70b-next:1"])
    assert shares(routes, "llama-70b")["llama-70b"] == pytest.approx(0.5, abs=0.02)
    assert routes.choose("llama-70b", "s", {"llama-70b"}) == "llama-70b"


def test_a_session_stays_with_its_version_and_moves_only_to_the_version_that_gains_weight() -> None:
    before, after = ModelRoutes.parse([CANARY]), ModelRoutes.parse(["chat-large=llama-70b:90,llama-70b-next:10"])
    keys = [f"session-{n}" for n in range(2000)]
    pairs = [(before.choose("chat-large", key, POOLS), after.choose("chat-large", key, POOLS)) for key in keys]
    assert pairs == [(before.choose("chat-large", key, POOLS), after.choose("chat-large", key, POOLS)) for key in keys]
    moves = Counter(pair for pair in pairs if pair[0] != pair[1])
    assert set(moves) == {("llama-70b", "llama-70b-next")}
    assert 0.02 < sum(moves.values()) / len(keys) < 0.09


def test_two_routes_choose_their_canary_sessions_independently() -> None:
    routes = ModelRoutes.parse(["a=llama-70b,llama-70b-next", "b=llama-70b,llama-70b-next"])
    equal = sum(routes.choose("a", str(n), POOLS) == routes.choose("b", str(n), POOLS) for n in range(1000))
    assert 400 < equal < 600


def test_a_target_without_replicas_gives_its_share_to_the_others() -> None:
    routes = ModelRoutes.parse([CANARY, "all=chat-large:1,small:1"])
    assert shares(routes, "chat-large", {"llama-70b-next"}, 100) == {"llama-70b-next": 1.0}
    assert shares(routes, "all", {"small"}, 100) == {"small": 1.0}, "a route whose targets are gone is gone, too"


def test_a_weight_of_zero_gets_no_request_even_when_it_is_alone() -> None:
    routes = ModelRoutes.parse(["a=small:0,llama-70b:1"])
    assert shares(routes, "a", count=500) == {"llama-70b": 1.0}
    with pytest.raises(ModelNotFound):
        routes.choose("a", "s", {"small"})


def test_an_unknown_model_names_what_exists() -> None:
    routes = ModelRoutes.parse([CANARY, "old=gone"])
    with pytest.raises(ModelNotFound, match="'nope' is not served here; served are chat-large, llama-70b, small"):
        routes.choose("nope", "s", {"llama-70b", "small"})
    with pytest.raises(ModelNotFound, match="'old' is not served here"):
        routes.choose("old", "s", {"small"})
    with pytest.raises(ModelNotFound, match="no models, as no replica is ready"):
        routes.choose("old", "s", set())


def test_a_route_hides_the_pool_of_its_name() -> None:
    routes = ModelRoutes.parse(["small=llama-70b"])
    assert routes.choose("small", "s", POOLS) == "llama-70b"
    assert routes.names({"small"}) == [], "small leads to llama-70b, which has no replica"
    with pytest.raises(ModelNotFound):
        routes.choose("small", "s", {"small"})

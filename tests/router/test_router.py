"""Router: the pool of a request, what its policy knows of it, and sessions."""

from typing import Any

import pytest

from chairlift.core.clock import FakeClock
from chairlift.core.errors import InvalidRequest, ModelNotFound
from chairlift.router.attempts.actions import PickReplica
from chairlift.router.config import RouterConfig
from chairlift.router.endpoint import Endpoint, ReplicaKind
from chairlift.router.health.config import HealthConfig
from chairlift.router.health.probe import ProbeResult
from chairlift.router.health.replica_load import parse_load
from chairlift.router.health.served_models import ServedModels
from chairlift.router.policies.registry import POLICY_NAMES
from chairlift.router.policies.routing_request import RoutingRequest
from chairlift.router.router import NO_REPLICA, Router
from support_replica_set import probed
from support_server import run

FIELDS = {"model": "m", "prompt": "word " * 400}


async def new_router(*, policy: str = "prefix", models: tuple[str, ...] = ("m",), hold_timeout: float = 0.0) -> Router:
    """Return a router with the replicas a and b."""
    config = RouterConfig(
        policy=policy, health=HealthConfig(has_active_probes=False), seed=1, hold_timeout=hold_timeout
    )  # fmt: skip
    router = Router(config, FakeClock())
    router.replicas.update([Endpoint(url=f"http://{name}", models=models) for name in "ab"], router.clock.now())
    return router


def test_a_request_without_a_model_goes_to_the_only_pool() -> None:
    async def scenario() -> None:
        one, two = await new_router(), await new_router(models=("m", "n"))
        for model in (5, ["m"]):
            assert (one.choose_pool(model, "k"), two.choose_pool(model, "k")) == ("m", ""), "a replica says it"
        for model in (None, ""):
            assert one.choose_pool(model, "k") == "m" == one.resolve_model("")
            with pytest.raises(InvalidRequest, match="model is missing: name one of m, n"):
                two.choose_pool(model, "k")
            assert two.choose_pool(model, "k", needs_model=False) == ""
        with pytest.raises(InvalidRequest, match="model is missing"):
            two.resolve_model("")
        assert two.choose_pool("n", "k") == "n"
        for router in (one, two):
            await router.close()

    run(scenario())


def report(router: Router, name: str, *, fingerprint: str, **fields: Any) -> None:
    """Let a replica report its load."""
    load = parse_load({"state": "ready", "fingerprint": fingerprint, **fields}, router.clock.now())
    result = ProbeResult(is_success=True, reason="", load=load, kind=ReplicaKind.CHAIRLIFT)
    router.replicas.apply_probe(f"http://{name}", result, router.clock.now())


def test_several_names_of_one_model_are_one_model() -> None:
    async def scenario() -> None:
        router = await new_router(models=("n", "m"))
        report(router, "a", fingerprint="f")
        with pytest.raises(InvalidRequest, match="model is missing"):
            router.choose_pool(None, "k")
        report(router, "b", fingerprint="f")
        assert router.choose_pool(None, "k") == "n", "the first of the replica's names"
        report(router, "b", fingerprint="g")
        with pytest.raises(InvalidRequest, match="model is missing"):
            router.choose_pool(None, "k")
        await router.close()

    run(scenario())


def test_aliases_of_replicas_and_tags_are_names_of_their_models() -> None:
    async def scenario() -> None:
        router = await new_router(models=("m", "n"))
        for name in "ab":
            report(router, name, fingerprint="f", aliases=["org/m", "/models/m"])
        for alias in ("m", "m:latest", "org/m", "/models/m", "org/m:latest"):
            assert router.choose_pool(alias, "k") == "m" == router.resolve_model(alias), alias
        assert router.choose_pool("n:latest", "k") == "n" and router.model_names() == ["m", "n"]
        for other in ("org/n", "m:7b", "models/m"):
            for find in (router.resolve_model, lambda name: router.choose_pool(name, "k")):
                with pytest.raises(ModelNotFound, match=r"served are m, n$"):
                    find(other)
        await router.close()

    run(scenario())


def test_an_alias_of_several_models_is_no_name() -> None:
    async def scenario() -> None:
        router = await new_router()
        served = {"a": "one", "b": "two", "c": "three"}
        endpoints = [Endpoint(url=f"http://{name}", models=(model,)) for name, model in served.items()]
        router.replicas.update(endpoints, router.clock.now())
        report(router, "a", fingerprint="f", aliases=["/model", "both"])
        report(router, "b", fingerprint="g", aliases=["/model", "b"])
        report(router, "c", fingerprint="f", aliases=["both"])
        assert router.resolve_model("b") == "two" and router.resolve_model("both:latest") == "one"
        for name in ("/model", "/model:latest"):
            for find in (router.resolve_model, lambda name: router.choose_pool(name, "")):
                with pytest.raises(InvalidRequest, match="may mean several models: name one of one, two"):
                    find(name)
        await router.close()

    run(scenario())


def test_aliases_are_remembered_while_requests_are_held() -> None:
    async def scenario() -> None:
        router = await new_router(hold_timeout=5.0)
        report(router, "a", fingerprint="f", aliases=["org/m"])
        router.update_gauges()
        router.replicas.update([], router.clock.now())
        assert router.must_hold("org/m", "k")
        with pytest.raises(ModelNotFound):
            router.must_hold("org/n", "k")
        await router.close()

    run(scenario())


def test_the_policy_knows_the_prompt_and_who_has_its_prefix() -> None:
    async def scenario() -> None:
        for policy in ("prefix", "round_robin"):
            router = await new_router(policy=policy)

            def describe(router: Router = router):  # type: ignore[no-untyped-def]
                return router.routing_request(
                    FIELDS, "m", request_id="r", client_address="1.2.3.4", session_key="s", tenant="t"
                )

            request, prefix = describe()
            assert request.prompt_tokens > 300 and (request.client_address, request.session_key) == ("1.2.3.4", "s")
            assert (prefix is None) == (policy != "prefix")
            chosen = router.pick(request, "m", PickReplica(1, frozenset(), ""))
            assert chosen is not None
            for _ in range(4):
                again, _ = describe()
                reservation = router.pick(again, "m", PickReplica(1, frozenset(), ""))
                assert reservation is not None
                if policy == "prefix":
                    assert reservation.replica_id == chosen.replica_id
                reservation.release()
            chosen.release()
            await router.close()

    run(scenario())


@pytest.mark.parametrize("policy", [name for name in POLICY_NAMES if name != "prefix"])
def test_policies_that_know_no_prefixes_cost_no_hashes(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("chairlift.router.router.prompt_prefix")

    async def scenario() -> None:
        router = await new_router(policy=policy)
        request, _ = router.routing_request(FIELDS, "m", request_id="r", client_address="", session_key="s", tenant="t")
        assert request.prompt_tokens > 300
        await router.close()

    run(scenario())


def test_the_prefixes_of_another_server_are_forgotten_when_it_returns() -> None:
    async def scenario() -> None:
        router = await new_router()

        def matches() -> dict[str, int]:
            request, _ = router.routing_request(
                FIELDS, "m", request_id="r", client_address="", session_key="", tenant=""
            )
            if (reservation := router.pick(request, "m", PickReplica(1))) is not None:
                reservation.release()
            return dict(request.prefix_matches)

        assert [len(matches()), len(matches())] == [0, 1]
        for is_success in (False, False, False, True, True):
            for name in "ab":
                router.replicas.apply_probe(f"http://{name}", probed(is_success=is_success), router.clock.now())
        assert len(matches()) == 0
        await router.close()

    run(scenario())


def test_sessions_are_kept_for_the_session_policy_alone_and_per_pool() -> None:
    async def scenario() -> None:
        for policy, expected in (("session", "http://a"), ("random", "")):
            router = await new_router(policy=policy)
            assert await router.assigned_replica("m", "s") == ""
            await router.assign_session("m", "s", "http://a", "")
            assert await router.assigned_replica("m", "s") == expected
            assert await router.assigned_replica("n", "s") == "" and await router.assigned_replica("m", "") == ""
            await router.close()

    run(scenario())


def test_an_ejected_replica_is_used_where_no_other_is_left() -> None:
    """It is the only one that may answer; without it the router would refuse requests until another one is back."""

    async def scenario() -> None:
        router = await new_router()
        router.mark_started()
        now = router.clock.now()
        assert router.replicas.eject_by_other_router("http://a", 30.0, "another router's faults", now)
        router.drain_replica("http://b")
        assert router.is_ready and router.lifecycle.reason == ""
        await router.close()

    run(scenario())


def test_it_is_ready_while_a_replica_is() -> None:
    async def scenario() -> None:
        router = await new_router()
        router.mark_started()
        assert router.is_ready and router.lifecycle.reason == ""
        for name in "ab":
            router.drain_replica(f"http://{name}")
        assert not router.is_ready and router.lifecycle.reason == NO_REPLICA
        router.replicas.undrain("http://a", router.clock.now())
        assert router.lifecycle.reason == ""
        router.replicas.update([], router.clock.now())
        assert router.lifecycle.reason == NO_REPLICA and router.model_names() == []
        await router.close()

    run(scenario())


def test_a_request_that_moves_gets_the_replica_that_became_ready_or_none() -> None:
    async def scenario() -> None:
        router = await new_router()
        request = RoutingRequest(prompt_tokens=10)
        for name in "ab" * 3:
            reservation = router.pick(request, "m", PickReplica(1, replica_id=f"http://{name}"))
            assert reservation is not None and reservation.replica_id == f"http://{name}"
            reservation.release()
        tried = frozenset({("http://a", "")})
        assert router.pick(request, "m", PickReplica(1, tried, replica_id="http://a")) is None
        assert router.pick(request, "m", PickReplica(1, replica_id="http://gone")) is None
        await router.close()

    run(scenario())


def test_a_request_with_an_adapter_moves_only_where_it_is_loaded() -> None:
    async def scenario() -> None:
        router = await new_router()
        request = RoutingRequest(adapter="fr")
        pick = PickReplica(1, replica_id="http://a")
        assert router.pick(request, "m", pick) is None
        served = ServedModels(names=("m",), adapters=frozenset({"fr"}), fingerprints={})
        router.replicas.apply_probe("http://a", probed(models=served), router.clock.now())
        reservation = router.pick(request, "m", pick)
        assert reservation is not None
        reservation.release()
        await router.close()

    run(scenario())

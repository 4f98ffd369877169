"""PrefixScorer, AffinityFilter, PrefixPicker: affinity, where it ends, and the hits that it gives."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from chairlift.router.policies.base import Policy
from chairlift.router.policies.candidate import Candidate
from chairlift.router.policies.prefix import (
    MAX_LOAD_EXCESS,
    NOMINAL_PREFILL_TOKENS_PER_SECOND,
    AffinityFilter,
    PrefixPicker,
    PrefixScorer,
    seconds_to_first_token,
)
from chairlift.router.policies.registry import make_policy
from chairlift.router.policies.routing_request import RoutingRequest
from chairlift.router.prefix_index import PrefixIndex
from support_shares import for_each

SPEED = 1000.0


def request(**matches: int) -> RoutingRequest:
    """Return a request of 1,000 prompt tokens, 100 a hash, and how many of its hashes each replica has."""
    return RoutingRequest(
        prefix=tuple(bytes([index]) for index in range(10)), prefix_tokens=range(100, 1001, 100),
        prefix_matches=matches, prompt_tokens=1000,
    )  # fmt: skip


def replica(name: str, **fields: float) -> Candidate:
    return replace(Candidate(replica_id=name, prefill_tokens_per_second=SPEED), **fields)  # type: ignore[arg-type]


def picks(given: list[Candidate], asked: RoutingRequest, count: int = 40) -> set[str]:
    policy = make_policy("prefix", 0)
    return {policy.pick(asked, given, 0.0).replica_id for _ in range(count)}


def test_the_score_is_the_share_of_the_prompt() -> None:
    given = [Candidate(replica_id=name) for name in "abc"]
    assert PrefixScorer().score(request(a=10, b=3), given) == [1.0, 0.3, 0.0]
    assert PrefixScorer().score(RoutingRequest(), given) == [0.0, 0.0, 0.0]


@for_each(
    ("fields", "matched", "seconds"),
    [
        ({}, 0, 1.0),
        ({}, 10, 0.0),
        ({}, 8, 0.2),
        ({"expected_wait_seconds": 3.0}, 8, 3.2),
        ({"waiting_tokens": 4000}, 8, 4.2),
        ({"waiting_tokens": 4000, "expected_wait_seconds": 5.0}, 8, 5.2),
        ({"open_requests": 3}, 0, 4.0),  # three that the last report did not count
        ({"open_requests": 3, "running_requests": 3}, 0, 1.0),
        ({"open_requests": 3, "running_requests": 1, "waiting_tokens": 500}, 5, 1.5),
        ({"prefill_tokens_per_second": 0.0}, 0, 0.5),  # at the default speed
        ({"prefill_tokens_per_second": 0.0, "open_requests": 9}, 0, 0.5),
        ({"prefill_tokens_per_second": 0.0, "expected_wait_seconds": 2.0}, 0, 2.5),
    ],
)
def test_seconds_to_the_first_token(fields: dict[str, float], matched: int, seconds: float) -> None:
    estimate = seconds_to_first_token(request(a=matched), replica("a", **fields), 2000.0)
    assert estimate == pytest.approx(seconds)


@for_each(
    ("fields", "matched", "other", "stays"),
    [
        ({}, 1, {}, True),
        ({"expected_wait_seconds": 0.7}, 8, {}, True),  # 0.8 s of prefill are saved
        ({"expected_wait_seconds": 0.9}, 8, {}, False),
        ({"expected_wait_seconds": 0.9}, 8, {"expected_wait_seconds": 0.2}, True),
        ({"expected_wait_seconds": 0.9}, 8, {"prefill_tokens_per_second": SPEED / 2}, True),
        ({"waiting_tokens": 900}, 8, {}, False),
        ({"running_requests": MAX_LOAD_EXCESS}, 10, {}, True),
        ({"running_requests": MAX_LOAD_EXCESS + 1}, 10, {}, False),
        ({"running_requests": MAX_LOAD_EXCESS + 40}, 10, {"running_requests": 20}, True),
        ({"running_requests": MAX_LOAD_EXCESS + 41}, 10, {"running_requests": 20}, False),
    ],
)
def test_affinity_ends_when_waiting_costs_more_than_computing_elsewhere(
    fields: dict[str, float], matched: int, other: dict[str, float], stays: bool
) -> None:
    candidate, alternative = replica("a", **fields), replica("b", **other)
    kept = AffinityFilter(Fixed("b")).filter(request(a=matched), [candidate, alternative, replica("c")])
    assert [each.replica_id for each in kept] == (["a", "b"] if stays else ["b"])


class Fixed:
    """Picker: always takes the replica of one name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def choose(
        self, request: RoutingRequest, candidates: Sequence[Candidate], scores: Sequence[float], now: float
    ) -> Candidate:
        return next(each for each in candidates if each.replica_id == self.name)


@pytest.mark.parametrize(
    ("matches", "scores", "chosen"),
    [
        ({}, (0.1, 0.3, 0.2), "b"),
        ({"a": 7}, (0.1, 0.3, 0.2), "b"),
        ({"a": 8}, (0.1, 0.3, 0.2), "a"),
        ({"a": 10, "c": 8}, (0.1, 0.3, 0.2), "c"),
    ],
)
def test_the_best_score_is_chosen_first_among_those_that_cover_80_percent(
    matches: dict[str, int], scores: tuple[float, ...], chosen: str
) -> None:
    given = [replica(name) for name in "abc"]
    assert PrefixPicker().choose(request(**matches), given, scores, 0.0).replica_id == chosen


def test_the_replica_with_the_longest_prefix_wins() -> None:
    assert picks([replica(name) for name in "abcd"], request(b=4, c=6)) == {"c"}


def test_a_prefix_that_covers_80_percent_wins_over_less_load_and_a_shorter_one_does_not() -> None:
    given = [replica("a", running_requests=7), replica("b"), replica("c")]
    assert picks(given, request(a=8)) == {"a"}
    assert picks(given, request(a=4)) == {"b", "c"}
    assert picks([replica("a"), *given[1:]], request(a=4)) == {"a"}


def test_of_two_that_cover_the_prompt_the_less_loaded_wins() -> None:
    given = [replica("a", running_requests=4), replica("b", running_requests=1), replica("c")]
    assert picks(given, request(a=9, b=9)) == {"b"}


def test_what_no_replica_knows_goes_to_the_least_loaded_of_four() -> None:
    given = [replica("a", running_requests=9), *(replica(name) for name in "bcd")]
    assert picks(given, request(), 200) == {"b", "c", "d"}
    assert picks(given, request(gone=10), 200) == {"b", "c", "d"}, "matches of replicas that are no candidates"


def test_a_prompt_that_no_replica_knows_avoids_queues_first_and_load_second() -> None:
    queue, busy = replica("a", expected_wait_seconds=0.1), replica("b", running_requests=20)
    assert picks([queue, busy], request()) == {"b"}
    assert picks([replica("a", waiting_tokens=1), busy], request()) == {"b"}
    assert picks([replica("a", pending_prefill_tokens=500), busy], request()) == {"b"}
    assert picks([replica("a", running_requests=21), busy], request()) == {"b"}
    assert picks([queue, replica("b", pending_prefill_tokens=99)], request()) == {"b"}
    assert picks([queue, replica("b", pending_prefill_tokens=101)], request()) == {"a"}


def test_a_queue_at_the_replica_sends_requests_elsewhere_and_its_end_brings_them_back() -> None:
    waiting = [replica("a", expected_wait_seconds=5.0), replica("b")]
    assert picks(waiting, request(a=10)) == {"b"}
    assert picks([replica("a"), replica("b")], request(a=10)) == {"a"}


def test_without_any_reported_speed_a_nominal_one_decides() -> None:
    saved = 1000 / NOMINAL_PREFILL_TOKENS_PER_SECOND
    for wait, chosen in ((0.9 * saved, "a"), (1.1 * saved, "b")):
        given = [
            replica("a", prefill_tokens_per_second=0.0, expected_wait_seconds=wait),
            replica("b", prefill_tokens_per_second=0.0),
        ]
        assert picks(given, request(a=10)) == {chosen}


def test_a_replica_without_a_speed_is_judged_by_the_speed_of_the_others() -> None:
    given = [replica("a", prefill_tokens_per_second=0.0, expected_wait_seconds=15.0), replica("b"), replica("c")]
    slow = [replace(each, prefill_tokens_per_second=each.prefill_tokens_per_second and 50.0) for each in given]
    assert "a" not in picks(given, request(a=10)), "15 s for 1 s of prefill"
    assert picks(slow, request(a=10)) == {"a"}, "15 s for 20 s of prefill"


def test_a_burst_between_two_load_reports_spreads() -> None:
    """All requests begin alike, and their replica reports nothing while they come."""
    policy, given = make_policy("prefix", 0), {name: replica(name) for name in "abcd"}
    for _ in range(100):
        chosen = policy.pick(request(a=9), list(given.values()), 0.0)
        given[chosen.replica_id] = replace(chosen, open_requests=chosen.open_requests + 1)
    assert 15 <= given["a"].open_requests <= 60
    assert all(given[name].open_requests >= 10 for name in "bcd")


def hit_rate(policy: Policy, sessions: int, turns: int, num_replicas: int) -> float:
    """Return the share of the prompt tokens of earlier turns that are found, when sessions take turns at random."""
    index, rng, prompts = PrefixIndex(), Random(0), dict.fromkeys(range(sessions), 0)
    given = {f"r{number}": replica(f"r{number}") for number in range(num_replicas)}
    incarnations = {name: each.incarnation for name, each in given.items()}
    hits = total = 0
    for _ in range(sessions * turns):
        session = rng.randrange(sessions)
        prompts[session] += 3
        prefix = tuple(f"{session}-{number}".encode() for number in range(prompts[session]))
        asked = RoutingRequest(
            prefix=prefix, prefix_tokens=range(100, 100 * len(prefix) + 1, 100), prompt_tokens=100 * len(prefix),
            prefix_matches=index.match(prefix, incarnations), request_id=str(rng.random()),
        )  # fmt: skip
        chosen = policy.pick(asked, list(given.values()), 0.0)
        hits += index.match(prefix, incarnations).get(chosen.replica_id, 0)
        total += len(prefix) - 3
        index.record(chosen.replica_id, chosen.incarnation, prefix)
    return hits / total


def test_conversations_hit_three_times_as_often_as_under_round_robin() -> None:
    prefix, round_robin = (hit_rate(make_policy(name, 1), 50, 10, 16) for name in ("prefix", "round_robin"))
    assert prefix > 0.99
    assert prefix >= 3 * round_robin

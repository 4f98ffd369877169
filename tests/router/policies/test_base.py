"""Tests of PolicyPipeline: filters run first, scores are weighted sums, the picker decides."""

from collections.abc import Sequence

import pytest

from chairlift.router.policies.base import AssignedReplica, PolicyPipeline, RoutingRequest
from chairlift.router.policies.candidate import Candidate
from support_policies import candidates

A, B, C = (Candidate(replica_id=name) for name in "abc")


class Without:
    """Filter: removes one candidate."""

    def __init__(self, removed: Candidate) -> None:
        self.removed = removed

    def filter(self, request: RoutingRequest, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        return [candidate for candidate in candidates if candidate is not self.removed]


class Table:
    """Scorer: fixed numbers by id."""

    def __init__(self, **scores: float) -> None:
        self.scores = scores

    def score(self, request: RoutingRequest, candidates: Sequence[Candidate]) -> list[float]:
        return [self.scores[candidate.replica_id] for candidate in candidates]


class Recorder:
    """Picker: takes the last candidate and keeps what it was given."""

    def choose(
        self, request: RoutingRequest, candidates: Sequence[Candidate], scores: Sequence[float], now: float
    ) -> Candidate:
        self.given = (request, list(candidates), list(scores), now)
        return candidates[-1]


def test_the_picker_gets_what_the_filters_keep_and_the_weighted_sum_of_their_scores() -> None:
    picker, request = Recorder(), RoutingRequest(request_id="r")
    scorers = ((Table(a=1.0, b=0.5), 2.0), (Table(a=0.0, b=1.0), 0.5))
    policy = PolicyPipeline(picker, filters=(Without(C),), scorers=scorers)
    assert policy.pick(request, [A, B, C], 7.0) is B
    assert picker.given == (request, [A, B], [2.0, 1.5], 7.0)


def test_without_scorers_every_score_is_0() -> None:
    picker = Recorder()
    PolicyPipeline(picker).pick(RoutingRequest(), [A, B], 0.0)
    assert picker.given[2] == [0.0, 0.0]


def test_matched_tokens_end_with_the_last_matched_hash() -> None:
    request = RoutingRequest(
        prefix=(b"1", b"2", b"3"), prefix_tokens=(10, 20, 50), prompt_tokens=55,
        prefix_matches={"a": 1, "c": 3, "d": 9, "e": 0},
    )  # fmt: skip
    assert [request.matched_tokens(name) for name in "abcde"] == [10, 0, 50, 50, 0]


def test_no_token_counts_mean_no_known_tokens() -> None:
    assert RoutingRequest(prefix=(b"1",), prefix_matches={"a": 1}).matched_tokens("a") == 0


class LastPolicy:
    """Takes the last candidate, and keeps what it was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[RoutingRequest, str, float]] = []

    def pick(self, request: RoutingRequest, given: Sequence[Candidate], now: float) -> Candidate:
        self.calls.append((request, "".join(each.replica_id for each in given), now))
        return given[-1]


@pytest.mark.parametrize("assigned", ["a", "b", "c"])
def test_an_assigned_replica_is_chosen_whatever_the_other_policy_says(assigned: str) -> None:
    other = LastPolicy()
    request = RoutingRequest(session_key="s", assigned_replica_id=assigned)
    given = candidates({"a": 1.0, "b": 0.1, "c": 1.0})
    assert AssignedReplica(other).pick(request, given, 0.0).replica_id == assigned
    assert not other.calls


@pytest.mark.parametrize("assigned", ["d", ""], ids=["gone", "none"])
def test_without_its_replica_a_session_goes_where_the_other_policy_says(assigned: str) -> None:
    other = LastPolicy()
    request = RoutingRequest(session_key="s", assigned_replica_id=assigned)
    assert AssignedReplica(other).pick(request, candidates(dict.fromkeys("abc", 1.0)), 7.0).replica_id == "c"
    assert other.calls == [(request, "abc", 7.0)]

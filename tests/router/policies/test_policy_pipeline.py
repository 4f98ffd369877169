"""PolicyPipeline: the picker gets what the filters keep and weighted sums of scores, 0 without scorers."""

from collections.abc import Sequence

from chairlift.router.policies.candidate import Candidate
from chairlift.router.policies.policy_pipeline import PolicyPipeline
from chairlift.router.policies.routing_request import RoutingRequest

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

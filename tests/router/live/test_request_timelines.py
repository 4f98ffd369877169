"""RequestTimelines: waits, attempts and their reasons; bounded, and without content."""

import pytest

from chairlift.core.clock import FakeClock
from chairlift.core.errors import Overloaded
from chairlift.router.attempts.actions import PickReplica, RecordOutcome
from chairlift.router.attempts.events import FailureReason
from chairlift.router.health.breaker import HealthOutcome
from chairlift.router.live.request_timelines import HELD, MAX_REQUESTS, MAX_SPANS, RequestTimelines


def test_a_request_that_was_held_retried_and_resumed() -> None:
    clock = FakeClock(100.0)
    timelines = RequestTimelines(clock)
    with timelines.begin("r", "alice", "m") as timeline:
        assert [each.request_id for each in timelines.open] == ["r"]
        timeline.prompt_tokens = 12
        timeline.begin_wait(HELD, 100.5)
        timeline.end_wait(102.0)
        timeline.record_pick(PickReplica(1), "http://a", 8, 102.0)
        timeline.record_attempt(
            RecordOutcome(1, "http://a", "", HealthOutcome.FAULT, failure=FailureReason.CONNECT), 102.25
        )
        timeline.record_pick(PickReplica(2, purpose="retry"), None, 0, 102.25)
        timeline.record_pick(PickReplica(3, purpose="retry"), None, 0, 102.5)
        open_waits = timeline.as_json()["waits"]
        assert open_waits == [["held", 0.5, 2.0], ["no_replica", 2.25, None]]
        timeline.record_pick(PickReplica(4, purpose="retry"), "http://b", 0, 103.0)
        timeline.record_first_byte(103.5)
        timeline.record_attempt(RecordOutcome(4, "http://b", "", HealthOutcome.SUCCESS, 0.4, 0.01), 104.0)
        timeline.outcome = "complete"
        clock.advance(4.5)
    (entry,) = timelines.log.since(0)
    assert entry is timeline and not list(timelines.open)
    fields = timeline.as_json()
    assert fields.pop("at_seconds") > 1e9
    attempt = {"began_seconds": 2.0, "ended_seconds": 2.25, "first_token_seconds": None}
    assert fields == {
        "request_id": "r", "tenant": "alice", "model": "m", "prompt_tokens": 12, "outcome": "complete",
        "seconds": 4.5, "first_byte_seconds": 3.5, "waits": [["held", 0.5, 2.0], ["no_replica", 2.25, 3.0]],
        "attempts": [
            {"number": 1, "replica_id": "http://a", "purpose": "first", "cached_tokens": 8, **attempt,
             "outcome": "fault", "reason": "connect"},
            {"number": 4, "replica_id": "http://b", "purpose": "retry", "cached_tokens": 0, "began_seconds": 3.0,
             "ended_seconds": 4.0, "first_token_seconds": 0.4, "outcome": "success", "reason": ""},
        ],
    }  # fmt: skip


def test_a_request_that_raises_has_the_code_of_its_error() -> None:
    timelines = RequestTimelines(FakeClock())
    overloaded, aborted = timelines.begin("a", "", {"no": "text"}), timelines.begin("b", "", "m")
    overloaded.begin_wait(HELD, 0.0)
    with pytest.raises(Overloaded), overloaded:
        raise Overloaded("full")
    with pytest.raises(KeyboardInterrupt), aborted:
        raise KeyboardInterrupt
    assert (overloaded.outcome, aborted.outcome) == ("overloaded", "abort")
    assert overloaded.as_json()["waits"] == [["held", 0.0, 0.0]] and overloaded.as_json()["model"] == ""


def test_requests_attempts_and_waits_are_bounded() -> None:
    timelines = RequestTimelines(FakeClock())
    for number in range(MAX_REQUESTS + 10):
        with timelines.begin(str(number), "", "m" * 1000) as timeline:
            for attempt in range(MAX_SPANS + 10):
                timeline.begin_wait(HELD, 0.0)
                timeline.record_pick(PickReplica(attempt), "http://a", 0, 1.0)
    kept = timelines.log.since(0)
    assert len(kept) == MAX_REQUESTS and timelines.log.num_added == MAX_REQUESTS + 10
    fields = timeline.as_json()
    assert len(fields["attempts"]) == len(fields["waits"]) == MAX_SPANS and len(fields["model"]) == 128

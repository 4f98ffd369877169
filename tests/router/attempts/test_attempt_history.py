"""AttemptHistory: what a failure costs, which replicas are excluded, and how long a request waits for another."""

import pytest

from chairlift.router.attempts.attempt import AttemptLimits
from chairlift.router.attempts.attempt_history import AttemptHistory
from chairlift.router.attempts.events import FailureReason, ReplicaPicked
from chairlift.router.attempts.final_errors import FailureCause
from support_shares import for_each

A, B = ReplicaPicked(1, "a", "1"), ReplicaPicked(2, "b", "1")


@for_each("reason", FailureReason)
@for_each("has_progress", [False, True])
def test_every_failure_costs_an_attempt_but_a_refused_connection_and_for_a_resume_no_room(
    reason: FailureReason, has_progress: bool
) -> None:
    history = AttemptHistory(AttemptLimits(max_attempts=2))
    history.record_failure(reason, has_progress=has_progress, now=0.0)
    is_free = reason is FailureReason.CONNECT or (
        has_progress and reason in (FailureReason.REJECTED, FailureReason.UNAVAILABLE)
    )
    assert history.num_failed == (0 if is_free else 1)
    history.record_failure(reason, has_progress=has_progress, now=0.0)
    assert history.has_attempts_left is is_free


def test_replicas_that_were_tried_are_excluded_until_they_restart_or_have_room() -> None:
    history = AttemptHistory(AttemptLimits())
    history.record_replica(A)
    history.record_replica(B)
    history.record_full(B, 3.0)
    assert history.excluded == {("a", "1"), ("b", "1")}
    assert history.num_attempts == 2
    history.forget_full()
    assert history.excluded == {("a", "1")}


def test_the_smallest_retry_after_counts_and_is_one_second_where_none_was_given() -> None:
    history = AttemptHistory(AttemptLimits())
    assert history.failure(FailureCause.REPLICAS).retry_after == 1.0
    history.record_retry_after(None)
    for seconds in (7.0, 4.0, 9.0):
        history.record_retry_after(seconds)
    assert history.failure(FailureCause.REPLICAS).retry_after == 4.0
    history.record_full(A, None)
    assert history.failure(FailureCause.REPLICAS).retry_after == 1.0
    history.forget_full()
    history.record_failure(FailureReason.RESET, has_progress=False, now=0.0)
    assert history.failure(FailureCause.ATTEMPTS).retry_after is None, "no replica was full"


def test_a_resume_waits_for_the_retry_after_within_its_limit_which_a_token_renews() -> None:
    history = AttemptHistory(AttemptLimits(resume_wait_seconds=10))
    assert history.wait_seconds(100.0, has_sent=True) is None, "no replica will have room"
    history.record_retry_after(6.0)
    assert history.wait_seconds(100.0, has_sent=True) == 6.0
    assert history.wait_seconds(104.0, has_sent=True) == 6.0
    assert history.wait_seconds(104.1, has_sent=True) is None
    history.record_token()
    assert history.wait_seconds(104.1, has_sent=True) == 6.0
    history.record_retry_after(0.0)
    assert history.wait_seconds(104.1, has_sent=True) == 0.1


@pytest.mark.parametrize("has_sent", [False, True])
def test_a_request_without_replicas_waits_for_a_replacement_which_a_token_renews(has_sent: bool) -> None:
    history = AttemptHistory(AttemptLimits(replacement_wait_seconds=5))
    assert history.wait_seconds(100.0, has_sent=has_sent) == 0.2
    assert history.wait_seconds(104.7, has_sent=has_sent) == 0.2
    assert history.wait_seconds(104.9, has_sent=has_sent) is None
    history.record_token()
    assert history.wait_seconds(104.9, has_sent=has_sent) == 0.2


def test_a_request_that_has_no_byte_does_not_wait_for_full_replicas() -> None:
    history = AttemptHistory(AttemptLimits(replacement_wait_seconds=5))
    history.record_retry_after(1.0)
    assert history.wait_seconds(100.0, has_sent=False) is None
    assert history.wait_seconds(100.0, has_sent=True) == 1.0


KEY_A, KEY_B = ("a", "1"), ("b", "1")


def test_no_request_waits_for_the_replacement_of_a_healthy_replica() -> None:
    history = AttemptHistory(AttemptLimits(replacement_wait_seconds=60))
    history.record_replica(A)
    history.record_failure(FailureReason.STATUS, has_progress=False, now=100.0, replica=A)
    history.record_no_replica(None, {KEY_A}, 100.0)
    assert history.wait_seconds(100.0, has_sent=False) is None, "it has answered with an error"
    history.record_no_replica(None, (), 100.0)
    assert history.wait_seconds(100.0, has_sent=False) == 0.2, "it has gone, and another one comes in its place"


def test_a_stream_of_lost_weights_ends_where_replicas_of_other_weights_serve() -> None:
    history = AttemptHistory(AttemptLimits(replacement_wait_seconds=60))
    history.record_replica(A)
    history.record_failure(FailureReason.EOF, has_progress=True, now=100.0, replica=A)
    history.record_no_replica(None, {KEY_A, KEY_B}, 100.0)
    assert history.wait_seconds(100.0, has_sent=True) is None


def test_a_lost_replica_is_not_healthy_until_the_health_checks_have_had_their_time_and_then_it_is_tried_again() -> None:
    history = AttemptHistory(AttemptLimits(replacement_wait_seconds=60))
    history.record_replica(A)
    history.record_failure(FailureReason.RESET, has_progress=False, now=100.0, replica=A)
    history.record_no_replica(None, {KEY_A}, 109.9)
    assert history.wait_seconds(109.9, has_sent=False) == 0.2
    assert history.excluded == {KEY_A}
    history.record_no_replica(None, {KEY_A}, 110.0)
    assert history.wait_seconds(110.0, has_sent=False) == 0.2
    assert history.excluded == frozenset()

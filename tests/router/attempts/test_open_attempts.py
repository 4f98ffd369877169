"""OpenAttempts: one that ends gives back timers, replica and permit; a frozen one keeps its events."""

from chairlift.router.attempts.actions import AbortAttempt, ClearTimer, RecordOutcome, ReleaseReplica, SetTimer
from chairlift.router.attempts.attempt import AttemptLimits, AttemptPurpose
from chairlift.router.attempts.events import AttemptBroken, ConnectFailed, FailureReason, ReplicaPicked, TimerKind
from chairlift.router.attempts.open_attempts import OpenAttempts
from chairlift.router.attempts.retry_budget import RetryBudget
from chairlift.router.health.breaker import HealthOutcome

LIMITS = AttemptLimits(connect_timeout_seconds=1, first_token_timeout_seconds=20, inter_token_timeout_seconds=3)


def test_an_attempt_gives_back_all_that_it_holds() -> None:
    budget = RetryBudget()
    attempts = OpenAttempts(LIMITS, budget)
    budget.acquire_retry(0.0)
    attempt = attempts.open(AttemptPurpose.RETRY, has_retry_permit=True)
    attempt.replica = ReplicaPicked(1, "a", "i")
    attempts.set_timer(attempt, TimerKind.FIRST_TOKEN)
    attempts.set_hedge_timer(attempt, 0.5)
    assert attempts.actions == [SetTimer(TimerKind.FIRST_TOKEN, 1, 20), SetTimer(TimerKind.HEDGE, 1, 0.5)]
    attempts.actions = []
    attempts.end(attempt, HealthOutcome.NEUTRAL)
    assert attempts.actions == [
        ClearTimer(TimerKind.FIRST_TOKEN, 1), ClearTimer(TimerKind.HEDGE, 1), AbortAttempt(1),
        RecordOutcome(1, "a", "i", HealthOutcome.NEUTRAL), ReleaseReplica(1, "a"),
    ]  # fmt: skip
    assert not len(attempts) and attempts.get(1) is None
    assert budget.active_retries == 0


def test_a_pick_that_ends_holds_no_replica_and_a_connection_that_has_ended_is_not_aborted() -> None:
    attempts = OpenAttempts(LIMITS, RetryBudget())
    attempts.end(attempts.open(AttemptPurpose.FIRST), HealthOutcome.NEUTRAL)
    assert attempts.actions == [AbortAttempt(1)]
    second = attempts.open(AttemptPurpose.RETRY)
    second.replica = ReplicaPicked(2, "a")
    attempts.end(second, HealthOutcome.FAULT, aborts=False)
    assert attempts.actions[1:] == [RecordOutcome(2, "a", "", HealthOutcome.FAULT), ReleaseReplica(2, "a")]


def test_a_permit_is_given_back_once() -> None:
    budget = RetryBudget()
    attempts = OpenAttempts(LIMITS, budget)
    budget.acquire_retry(0.0)
    budget.acquire_retry(0.0)
    attempt = attempts.open(AttemptPurpose.RETRY, has_retry_permit=True)
    attempts.release_permit(attempt)
    attempts.end(attempt, HealthOutcome.NEUTRAL)
    assert budget.active_retries == 1


def test_a_frozen_attempt_keeps_its_events_until_it_thaws() -> None:
    attempts = OpenAttempts(LIMITS, RetryBudget())
    first, second = attempts.open(AttemptPurpose.FIRST), attempts.open(AttemptPurpose.HANDOVER)
    assert attempts.others(first) == [second]
    attempts.set_timer(first, TimerKind.FIRST_TOKEN)
    attempts.freeze(first)
    assert attempts.actions[-1] == ClearTimer(TimerKind.FIRST_TOKEN, 1)
    broken = AttemptBroken(1, FailureReason.RESET)
    assert attempts.keep_frozen(broken)
    assert not attempts.keep_frozen(AttemptBroken(2, FailureReason.RESET))
    assert not attempts.keep_frozen(AttemptBroken(7, FailureReason.RESET))
    assert not attempts.keep_frozen(ConnectFailed(1))
    assert attempts.thaw(first) == [broken]
    assert attempts.actions[-1] == SetTimer(TimerKind.FIRST_TOKEN, 1, 20)
    assert attempts.thaw(first) == []
    first.record_tokens(1, 5.0)
    attempts.freeze(first)
    assert attempts.thaw(first) == []
    assert attempts.actions[-1] == SetTimer(TimerKind.INTER_TOKEN, 1, 3)


def test_the_hedge_timer_fires_once_and_only_for_its_attempt() -> None:
    attempts = OpenAttempts(LIMITS, RetryBudget())
    first, second = attempts.open(AttemptPurpose.FIRST), attempts.open(AttemptPurpose.RETRY)
    attempts.set_hedge_timer(first, 1.0)
    assert not attempts.hedge_timer_fired(second)
    assert attempts.hedge_timer_fired(first)
    assert not attempts.hedge_timer_fired(first)
    attempts.actions = []
    attempts.clear_hedge_timer()
    assert attempts.actions == []

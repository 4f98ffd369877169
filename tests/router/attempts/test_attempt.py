"""Attempt: measured times in its outcome, held chunks once and in order; AttemptLimits: what is out of range."""

from typing import Any

import pytest

from chairlift.core.errors import ConfigError
from chairlift.router.attempts.actions import RecordOutcome
from chairlift.router.attempts.attempt import Attempt, AttemptLimits, AttemptPhase, AttemptPurpose
from chairlift.router.attempts.events import ReplicaPicked
from chairlift.router.health.breaker import HealthOutcome
from support_attempts import chunk


def test_the_outcome_has_what_was_measured() -> None:
    attempt = Attempt(3, AttemptPurpose.FIRST, replica=ReplicaPicked(3, "a", "i1"))
    assert attempt.outcome(HealthOutcome.FAULT) == RecordOutcome(3, "a", "i1", HealthOutcome.FAULT, None, None)
    attempt.sent_at = 1.0
    attempt.record_tokens(1, 3.0)
    assert attempt.phase is AttemptPhase.STREAMING
    assert attempt.outcome(HealthOutcome.SUCCESS).first_token_seconds == 2.0
    assert attempt.outcome(HealthOutcome.SUCCESS).inter_token_seconds is None
    attempt.record_tokens(4, 5.0)
    assert attempt.outcome(HealthOutcome.SUCCESS).inter_token_seconds == 0.5
    assert attempt.first_token_at == 3.0


def test_held_chunks_are_taken_once_in_the_order_of_their_choices() -> None:
    attempt = Attempt(1, AttemptPurpose.FIRST)
    first, second, other = chunk(0, {"a": "1"}), chunk(0, {"a": "2"}), chunk(1, {"a": "3"})
    attempt.held = {0: [first, second], 1: [other]}
    assert attempt.take_held() == [first, second, other]
    assert attempt.take_held() == []


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_attempts": 0}, "max_attempts must be at least 1, got 0"),
        ({"connect_timeout_seconds": 0}, "connect_timeout_seconds must be above 0, got 0"),
        ({"first_token_timeout_seconds": -1}, "first_token_timeout_seconds must be above 0, got -1"),
        ({"inter_token_timeout_seconds": float("nan")}, "inter_token_timeout_seconds must be above 0, got nan"),
        ({"resume_wait_seconds": -1}, "resume_wait_seconds must be 0 or more, got -1"),
    ],
)
def test_limits_out_of_range_are_refused(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AttemptLimits(**limits)

"""OpenAttempts: the attempts of one request that have not ended, their timers and retry permits, and how they end."""

from collections.abc import Iterator

from chairlift.router.attempts.actions import AbortAttempt, Action, ClearTimer, ReleaseReplica, ResponseMode, SetTimer
from chairlift.router.attempts.attempt import Attempt, AttemptLimits, AttemptPhase, AttemptPurpose
from chairlift.router.attempts.events import AttemptEvent, Event, TimerKind
from chairlift.router.attempts.retry_budget import RetryBudget
from chairlift.router.health.breaker import HealthOutcome


class OpenAttempts:
    """The open attempts by their numbers. Every attempt ends in `end`, which gives back all that it holds.

    Attributes:
        actions: what to do about the current event; the owner replaces the list for each event.
    """

    def __init__(self, limits: AttemptLimits, budget: RetryBudget) -> None:
        self._limits = {
            TimerKind.CONNECT: limits.connect_timeout_seconds,
            TimerKind.FIRST_TOKEN: limits.first_token_timeout_seconds,
            TimerKind.INTER_TOKEN: limits.inter_token_timeout_seconds,
        }
        self._budget = budget
        self._attempts: dict[int, Attempt] = {}
        self._last_number = 0
        self._hedge_timer = 0  # the attempt that it runs for
        self.actions: list[Action] = []

    def __len__(self) -> int:
        return len(self._attempts)

    def __iter__(self) -> Iterator[Attempt]:
        return iter([*self._attempts.values()])

    def get(self, number: int) -> Attempt | None:
        """Return an attempt if it is open."""
        return self._attempts.get(number)

    def others(self, attempt: Attempt) -> list[Attempt]:
        """Return all open attempts but one."""
        return [other for other in self if other is not attempt]

    @property
    def waiting(self) -> Attempt | None:
        """The only open attempt if it waits for its first token; None for a response whose tokens cannot be seen."""
        attempt = next(iter(self._attempts.values()), None)
        if attempt is None or len(self) > 1 or attempt.phase is not AttemptPhase.SENT:
            return None
        return None if attempt.mode is ResponseMode.WHOLE else attempt

    def open(self, purpose: AttemptPurpose, *, has_retry_permit: bool = False) -> Attempt:
        """Return a new attempt; a retry permit of the budget becomes its own."""
        self._last_number += 1
        attempt = Attempt(self._last_number, purpose, has_retry_permit=has_retry_permit)
        self._attempts[attempt.number] = attempt
        return attempt

    def end(self, attempt: Attempt, outcome: HealthOutcome, *, aborts: bool = True) -> None:
        """End an attempt: its timers, its permit, its replica; `aborts` unless its connection has ended by itself."""
        del self._attempts[attempt.number]
        self.clear_timer(attempt)
        if self._hedge_timer == attempt.number:
            self.clear_hedge_timer()
        if aborts:
            self.actions.append(AbortAttempt(attempt.number))
        self.release_permit(attempt)
        if attempt.replica is not None:
            # The outcome comes first: it is reported through the reservation that the second action gives back.
            self.actions.append(attempt.outcome(outcome))
            self.actions.append(ReleaseReplica(attempt.number, attempt.replica.replica_id))

    def release_permit(self, attempt: Attempt) -> None:
        """Give the attempt's retry permit back, if it has one."""
        if attempt.has_retry_permit:
            attempt.has_retry_permit = False
            self._budget.release_retry()

    def limit(self, kind: TimerKind) -> float:
        """Return the seconds of a timer of an attempt."""
        return self._limits[kind]

    def set_timer(self, attempt: Attempt, kind: TimerKind, seconds: float | None = None) -> None:
        """Set the attempt's only timer, to the limit of its kind unless `seconds` are given."""
        attempt.timer = kind
        self.actions.append(SetTimer(kind, attempt.number, self.limit(kind) if seconds is None else seconds))

    def clear_timer(self, attempt: Attempt) -> None:
        """Stop the attempt's timer, if one runs."""
        if attempt.timer is not None:
            self.actions.append(ClearTimer(attempt.timer, attempt.number))
            attempt.timer = None

    def set_hedge_timer(self, attempt: Attempt, seconds: float) -> None:
        """Set the timer after which the attempt gets a second one beside it."""
        self._hedge_timer = attempt.number
        self.actions.append(SetTimer(TimerKind.HEDGE, attempt.number, seconds))

    def clear_hedge_timer(self) -> None:
        """Stop the hedge timer, if it runs."""
        if self._hedge_timer:
            self.actions.append(ClearTimer(TimerKind.HEDGE, self._hedge_timer))
            self._hedge_timer = 0

    def freeze(self, attempt: Attempt) -> None:
        """Keep the attempt's events back from now on, while another attempt tries to go on with its response."""
        attempt.frozen = []
        self.clear_timer(attempt)

    def thaw(self, attempt: Attempt) -> list[AttemptEvent]:
        """Return the events that came while the attempt was frozen; it is not frozen any more."""
        events, attempt.frozen = attempt.frozen, None
        if events is None:
            return []
        # freeze() has stopped its timer; it gets the whole time again.
        kind = TimerKind.FIRST_TOKEN if attempt.first_token_at is None else TimerKind.INTER_TOKEN
        self.set_timer(attempt, kind)
        return events

    def keep_frozen(self, event: Event) -> bool:
        """Keep an event back if its attempt is frozen, and return whether it is."""
        if not isinstance(event, AttemptEvent):
            return False
        attempt = self._attempts.get(event.attempt)
        if attempt is None or attempt.frozen is None:
            return False
        attempt.frozen.append(event)
        return True

    def hedge_timer_fired(self, attempt: Attempt) -> bool:
        """Return whether the hedge timer ran for this attempt; it runs no more."""
        # A timer that was cleared may have fired before, and its event may still be in the queue.
        was_set = self._hedge_timer == attempt.number
        self._hedge_timer = 0 if was_set else self._hedge_timer
        return was_set

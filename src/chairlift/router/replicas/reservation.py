"""Reservation: the place of one request on one replica, from the pick to its release."""

import math
from types import TracebackType
from typing import Protocol, Self

from chairlift.router.health.breaker import HealthOutcome
from chairlift.router.health.health_state import TransitionCause
from chairlift.router.health.replica_load import ReplicaLoad, parse_load_header
from chairlift.router.replicas.routed_replica import RoutedReplica


class ReservationOwner(Protocol):
    """The replica set, as its reservations see it."""

    def record_outcome(self, replica: RoutedReplica, outcome: HealthOutcome, now: float, *, epoch: int) -> None:
        """Count the outcome of a request."""
        ...

    def end_trial(self, replica: RoutedReplica, outcome: HealthOutcome, now: float, *, epoch: int) -> None:
        """End a trial request."""
        ...

    def record_latency(
        self, replica: RoutedReplica, model: str, cause: TransitionCause, seconds: float, now: float
    ) -> None:
        """Add a latency sample."""
        ...

    def record_load(self, replica: RoutedReplica, load: ReplicaLoad, now: float) -> None:
        """Take over a load report."""
        ...

    def forget_if_left(self, replica: RoutedReplica) -> None:
        """Drop a removed replica that has nothing open any more."""
        ...


class Reservation:
    """One request that is counted as open on a replica. Release it in `finally`, or use it as a context manager.

    Attributes:
        replica_id: the replica's URL.
        endpoint: the replica's endpoint at the pick.
        incarnation: the replica's process at the pick, "" if unknown.
        model: model of the request.
        fingerprint: fingerprint of the model's weights there, "" if unknown.
        is_resumable: whether the request's stream can go on on another replica.
        is_trial: whether the request decides on the replica's return from an ejection.
        is_released: whether the request is no longer counted.
    """

    def __init__(
        self, owner: ReservationOwner, replica: RoutedReplica, *, model: str, prompt_tokens: int, is_trial: bool
    ) -> None:  # fmt: skip
        self.replica_id, self.endpoint, self.incarnation = replica.replica_id, replica.endpoint, replica.incarnation
        self.model, self.fingerprint = model, replica.fingerprint(model)
        self.is_resumable, self.is_trial, self.is_released = replica.is_resumable(model), is_trial, False
        self._owner, self._replica, self._health = owner, replica, replica.health
        self._epoch = replica.health.breaker.epoch
        self._prompt_tokens = prompt_tokens
        self._is_waiting = True
        self._has_outcome = False
        self._trial_is_open = is_trial

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    @property
    def is_replica_unhealthy(self) -> bool:
        """Whether the replica fails its health checks."""
        return self._health is self._replica.health and self._health.active.is_healthy is False

    def record(self, outcome: HealthOutcome, now: float) -> None:
        """Record how the request ended; only the first call counts. Without one it is neutral."""
        if self._has_outcome:
            return
        self._has_outcome = True
        if self._health is not self._replica.health:  # the replica was removed and added meanwhile
            return
        if self._trial_is_open and outcome is not HealthOutcome.NEUTRAL:
            self._end_trial(outcome, now)
        elif not self._trial_is_open:
            self._owner.record_outcome(self._replica, outcome, now, epoch=self._epoch)

    def record_first_token(self, seconds: float, now: float) -> None:
        """Record the time to the first token; a trial has succeeded with it, a later fault counts on its own."""
        self._end_wait()
        if self._health is not self._replica.health:
            return
        if self._trial_is_open and not self._has_outcome:
            self._end_trial(HealthOutcome.SUCCESS, now)
        self._record_latency(TransitionCause.TIME_TO_FIRST_TOKEN, seconds, now)

    def record_inter_token_latency(self, seconds: float, now: float) -> None:
        """Record the mean time between the tokens of the request; call it once, at its end."""
        self._record_latency(TransitionCause.INTER_TOKEN_LATENCY, seconds, now)

    def record_load_header(self, text: str, now: float) -> None:
        """Take over the load report of the answer's x-chairlift-load header, if it makes sense."""
        load = parse_load_header(text, now)
        if load is None or self._health is not self._replica.health:
            return
        if load.incarnation and load.incarnation == self.incarnation != self._replica.incarnation:
            return  # late words of a process that has ended
        self._owner.record_load(self._replica, load, now)

    def release(self) -> None:
        """Count the request down; further calls do nothing."""
        if self.is_released:
            return
        self.is_released = True
        self._end_wait()
        if self._trial_is_open:
            self._health.breaker.cancel_trial(epoch=self._epoch)
        self._replica.release()
        self._owner.forget_if_left(self._replica)

    def _end_trial(self, outcome: HealthOutcome, now: float) -> None:
        self._trial_is_open = False
        is_current = self._epoch == self._health.breaker.epoch
        self._owner.end_trial(self._replica, outcome, now, epoch=self._epoch)
        if is_current:  # from here on the request counts as one of a healthy replica
            self._epoch = self._health.breaker.epoch

    def _end_wait(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._replica.end_wait(self._prompt_tokens)

    def _record_latency(self, cause: TransitionCause, seconds: float, now: float) -> None:
        if self._epoch == self._health.breaker.epoch and math.isfinite(seconds) and seconds >= 0:
            self._owner.record_latency(self._replica, self.model, cause, seconds, now)

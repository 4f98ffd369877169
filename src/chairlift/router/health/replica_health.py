"""ReplicaHealth: joins probes, breaker, the replica's own report and the administrator's word to one state."""

from chairlift.core.load_report import ReplicaState
from chairlift.router.health.breaker import Breaker, BreakerState, HealthOutcome
from chairlift.router.health.config import HealthConfig, slow_start_factor
from chairlift.router.health.consecutive_probes import ConsecutiveProbes
from chairlift.router.health.health_state import HealthState, Transition, TransitionCause


class ReplicaHealth:
    """The health of one replica.

    Each method that may change the state returns the Transition, or None. Pure: `now` is passed in.

    Attributes:
        state: the state; the first of these that holds: REMOVED, DRAINED, NOT_READY, UNHEALTHY, EJECTED, PROBING,
            PENDING, HEALTHY.
        cause: cause of the last transition.
        reason: reason of the last transition, a sentence.
        since_seconds: monotonic time of the last transition.
        breaker: ejections; ask `may_eject` of the pool before `eject`.
        active: verdict of the probes.
        incarnation: id of the replica's process, "" if unknown.
        was_ejected_by_other_router: whether another router decided the last ejection.
        reported_state: the state that the replica reports, None if it reports none.
    """

    def __init__(self, replica_id: str, config: HealthConfig, now: float, *, is_warm: bool) -> None:
        """Start in PENDING, or in HEALTHY without probes; a replica that `is_warm` has no slow start."""
        self.breaker = Breaker(config.breaker)
        self.active = ConsecutiveProbes(config.probes, is_healthy=None if config.has_active_probes else True)
        self.reported_state: ReplicaState | None = None
        self.incarnation = ""
        self.was_ejected_by_other_router = False
        self._replica_id = replica_id
        self._config = config
        self._is_drained = self._is_removed = False
        self._slow_start_since: float | None = None if is_warm else now
        self._is_warm = is_warm
        self.state = self._derive_state()
        self.cause, self.reason, self.since_seconds = TransitionCause.ADDED, "added", now

    @property
    def is_ejected(self) -> bool:
        """Whether the replica counts as ejected in its pools; it does until a trial request has succeeded."""
        return self.breaker.state is not BreakerState.HEALTHY

    def has_due_trial(self, now: float) -> bool:
        """Return whether the next request is to be the trial request."""
        return self.state is HealthState.PROBING and self.breaker.has_due_trial(now)

    @property
    def is_in_slow_start(self) -> bool:
        """Whether the weight still grows."""
        return self._slow_start_since is not None

    def weight_factor(self, now: float) -> float:
        """Return the share of its weight that the replica has now: less than 1 in a slow start."""
        if self._slow_start_since is None:
            return 1.0
        factor = slow_start_factor(now - self._slow_start_since, self._config.slow_start_seconds)
        if factor == 1.0:
            self._slow_start_since = None
        return factor

    # -- what changes the state ------------------------------------------------------------------------------------

    def record_probe(
        self, now: float, *, is_success: bool, reason: str, state: ReplicaState | None = None
    ) -> Transition | None:
        """Count the result of an active probe, and take over the `state` in its answer at the same time.

        Probes that call a replica unhealthy replace its ejection, and so do probes that call it healthy again.
        """
        if self.active.record(is_success=is_success) and self.is_ejected:
            self.breaker.close(now)
        ready = {None, ReplicaState.READY}
        # Ready or unknown on both sides leaves its report as it is, so the probes are the cause.
        if state in ready and self.reported_state in ready:
            self.reported_state = state or self.reported_state
        elif state is not None:
            return self.record_report(state, now)
        return self._refresh(now, TransitionCause.PROBES, reason)

    def record_report(self, state: ReplicaState, now: float) -> Transition | None:
        """Take over the state that the replica reports; it holds at once, without a count."""
        if state is self.reported_state:  # each answer of a replica has a report
            return None
        self.reported_state = state
        reason = f"the replica reports that it is {state}"
        if (rest := self._derive_state()) is HealthState.UNHEALTHY:
            reason += f", but it was unhealthy; {self._config.probes.min_successes} probes in a row must succeed"
        elif rest is HealthState.EJECTED:
            reason += ", but its ejection is not over"
        return self._refresh(now, TransitionCause.REPORT, reason)

    def eject(self, now: float, cause: TransitionCause, reason: str, *, seconds: float | None) -> Transition | None:
        """Eject the replica, for `seconds` if given."""
        self.breaker.eject(now, seconds=seconds)
        self.was_ejected_by_other_router = cause is TransitionCause.OTHER_ROUTER
        return self._refresh(now, cause, reason)

    def end_ejection(self, now: float, cause: TransitionCause, reason: str) -> Transition | None:
        """Return from an ejection at once, without a trial."""
        self.breaker.close(now)
        return self._refresh(now, cause, reason)

    def advance(self, now: float) -> Transition | None:
        """End an ejection that is over: the next request is a trial."""
        self.breaker.advance(now)
        return self._refresh(now, TransitionCause.RECOVERY_TIMEOUT, "the ejection is over, the next request is a trial")

    def end_trial(self, outcome: HealthOutcome, now: float, *, epoch: int) -> Transition | None:
        """End the trial request with its outcome."""
        if self.breaker.end_trial(outcome, now, epoch=epoch):
            self.was_ejected_by_other_router = False
        words = "succeeded" if outcome is HealthOutcome.SUCCESS else "failed"
        return self._refresh(now, TransitionCause.TRIAL, f"the trial request {words}")

    def record_restart(self, now: float) -> Transition | None:
        """Forget the outcomes of the last process; an ejection of it ends with a trial of the new one."""
        self._slow_start_since = now
        # Outcomes of the last process must not count against the new one: both branches begin an epoch.
        if self.breaker.state is BreakerState.HEALTHY:
            self.breaker.close(now)
        else:
            self.breaker.skip_ejection()
        return self._refresh(now, TransitionCause.RESTART, "the replica's process is new, the next request is a trial")

    def drain(self, now: float) -> Transition | None:
        """Send no new requests until `undrain`."""
        self._is_drained = True
        return self._refresh(now, TransitionCause.ADMIN, "drained by an administrator")

    def undrain(self, now: float) -> Transition | None:
        """End a drain by an administrator."""
        self._is_drained = False
        return self._refresh(now, TransitionCause.ADMIN, "undrained by an administrator")

    def remove(self, now: float) -> Transition | None:
        """Send no new requests: no discovery source names the replica any more."""
        self._is_removed = True
        return self._refresh(now, TransitionCause.REMOVED, "no discovery source names the replica any more")

    # -- inside ----------------------------------------------------------------------------------------------------

    def _derive_state(self) -> HealthState:
        if self._is_removed:
            return HealthState.REMOVED
        if self._is_drained:
            return HealthState.DRAINED
        if self.reported_state not in {None, ReplicaState.READY}:
            return HealthState.NOT_READY
        if self.active.is_healthy is False:
            return HealthState.UNHEALTHY
        if self.breaker.state is not BreakerState.HEALTHY:
            return HealthState(self.breaker.state)
        return HealthState.PENDING if self.active.is_healthy is None else HealthState.HEALTHY

    def _refresh(self, now: float, cause: TransitionCause, reason: str) -> Transition | None:
        old, new = self.state, self._derive_state()
        if old is new:
            return None
        self.state, self.cause, self.reason, self.since_seconds = new, cause, reason, now
        # A warm replica was there before the router: it needs no slow start after its first probes.
        if new is HealthState.HEALTHY and not (self._is_warm and old is HealthState.PENDING):
            self._slow_start_since = now
        if new is not HealthState.HEALTHY:
            self._is_warm = False
        ejection_seconds = max(0.0, self.breaker.ejected_until - now) if new is HealthState.EJECTED else 0.0
        return Transition(
            replica_id=self._replica_id, old=old, new=new, cause=cause, reason=reason, at_seconds=now,
            incarnation=self.incarnation, ejection_seconds=ejection_seconds,
        )  # fmt: skip

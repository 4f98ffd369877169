"""TransitionLog: the last changes with their reasons."""

from chairlift.router.health.health_state import HealthState, Transition, TransitionCause
from chairlift.router.live.transition_log import MAX_TRANSITIONS, TransitionLog


def test_changes_are_kept_with_reason_and_time() -> None:
    transitions = TransitionLog(lambda: 1234.5678)
    for number in range(MAX_TRANSITIONS + 1):
        transitions.on_transition(
            Transition(
                replica_id=f"http://{number}", old=HealthState.HEALTHY, new=HealthState.EJECTED,
                cause=TransitionCause.CONSECUTIVE_FAULTS, reason="3 faults in a row", at_seconds=7.0,
                ejection_seconds=30.0,
            )
        )  # fmt: skip
    kept = transitions.log.since(0)
    assert len(kept) == MAX_TRANSITIONS
    assert kept[-1] == {
        "at_seconds": 1234.568, "replica_id": f"http://{MAX_TRANSITIONS}", "old": "healthy", "new": "ejected",
        "cause": "consecutive_faults", "reason": "3 faults in a row", "ejection_seconds": 30.0,
    }  # fmt: skip

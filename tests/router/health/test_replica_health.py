"""ReplicaHealth: which state holds when several reasons meet, what a transition says, and slow start."""

import pytest

from chairlift.core.load_report import ReplicaState
from chairlift.router.health.breaker import HealthOutcome
from chairlift.router.health.config import HealthConfig
from chairlift.router.health.health_state import EJECTION_CAUSES, HealthState, Transition, TransitionCause
from chairlift.router.health.replica_health import ReplicaHealth

CONFIG = HealthConfig()


def new_health(*, is_warm: bool = True, config: HealthConfig = CONFIG) -> ReplicaHealth:
    return ReplicaHealth("http://a", config, 0.0, is_warm=is_warm)


def healthy(*, is_warm: bool = True) -> ReplicaHealth:
    health = new_health(is_warm=is_warm)
    assert health.record_probe(0.0, is_success=True, reason="") is not None
    return health


def eject(health: ReplicaHealth, now: float = 0.0) -> Transition | None:
    return health.eject(now, TransitionCause.ERROR_SHARE, "why", seconds=None)


def fail_probes(health: ReplicaHealth) -> None:
    for _ in range(3):
        health.record_probe(0.0, is_success=False, reason="timeout")


def test_states_in_order_of_their_precedence() -> None:
    health = healthy()
    assert health.state is HealthState.HEALTHY
    eject(health)
    assert health.state is HealthState.EJECTED
    fail_probes(health)
    assert health.state is HealthState.UNHEALTHY and not health.is_ejected
    health.record_report(ReplicaState.STARTING, 0.0)
    assert health.state is HealthState.NOT_READY
    health.drain(0.0)
    assert health.state is HealthState.DRAINED
    health.remove(0.0)
    assert health.state is HealthState.REMOVED
    health.undrain(0.0)
    health.record_report(ReplicaState.READY, 0.0)
    assert health.state is HealthState.REMOVED


def test_a_state_comes_back_when_the_one_above_it_ends() -> None:
    health = healthy()
    eject(health)
    health.drain(1.0)
    assert health.is_ejected, "it still counts as one of the half"
    transition = health.undrain(2.0)
    assert transition is not None and transition.new is HealthState.EJECTED and transition.ejection_seconds == 28.0


def test_a_transition_has_the_numbers_of_the_change() -> None:
    health = healthy()
    health.incarnation = "p1"
    assert eject(health, 7.0) == Transition(
        replica_id="http://a", old=HealthState.HEALTHY, new=HealthState.EJECTED, cause=TransitionCause.ERROR_SHARE,
        reason="why", at_seconds=7.0, incarnation="p1", ejection_seconds=30.0,
    )  # fmt: skip
    assert (health.cause, health.reason, health.since_seconds) == (TransitionCause.ERROR_SHARE, "why", 7.0)
    assert TransitionCause.ERROR_SHARE in EJECTION_CAUSES


@pytest.mark.parametrize("state", [state for state in ReplicaState if state is not ReplicaState.READY])
def test_what_the_replica_reports_holds_at_once(state: ReplicaState) -> None:
    health = healthy()
    transition = health.record_report(state, 1.0)
    assert transition is not None and transition.reason == f"the replica reports that it is {state}"
    assert health.record_report(state, 2.0) is None
    back = health.record_report(ReplicaState.READY, 3.0)
    assert back is not None and back.new is HealthState.HEALTHY
    assert health.weight_factor(3.0) == 0.1


def test_a_replica_that_reports_ready_but_gets_no_requests_says_why() -> None:
    health = healthy()
    health.record_report(ReplicaState.STARTING, 1.0)
    fail_probes(health)
    back = health.record_report(ReplicaState.READY, 2.0)
    assert back is not None and back.new is HealthState.UNHEALTHY
    assert back.reason == ("the replica reports that it is ready, but it was unhealthy; 2 probes in a row must succeed")
    health = healthy()
    eject(health)
    health.record_report(ReplicaState.DRAINING, 1.0)
    back = health.record_report(ReplicaState.READY, 2.0)
    assert back is not None and back.new is HealthState.EJECTED
    assert back.reason == "the replica reports that it is ready, but its ejection is not over"


def test_the_first_replicas_have_no_slow_start_and_added_ones_have() -> None:
    assert healthy(is_warm=True).weight_factor(0.0) == 1.0
    assert healthy(is_warm=False).weight_factor(0.0) == 0.1
    without_probes = HealthConfig(has_active_probes=False)
    assert new_health(is_warm=False, config=without_probes).weight_factor(15.0) == 0.5
    assert new_health(is_warm=True, config=without_probes).weight_factor(0.0) == 1.0


def test_a_first_replica_that_fails_before_it_is_healthy_starts_slowly() -> None:
    health = new_health(is_warm=True)
    health.record_probe(0.0, is_success=False, reason="")
    health.record_probe(50.0, is_success=True, reason="")
    assert health.state is HealthState.HEALTHY and health.weight_factor(50.0) == 0.1


def test_slow_start_begins_with_each_return_and_ends() -> None:
    health = healthy()
    for now in (100.0, 500.0):
        eject(health, now)
        health.end_ejection(now + 10, TransitionCause.EJECTION_LIMIT, "")
        assert health.is_in_slow_start and health.weight_factor(now + 25) == 0.5
        assert health.weight_factor(now + 40) == 1.0 and not health.is_in_slow_start


def test_a_new_process_starts_slowly_and_ends_an_ejection_by_a_trial() -> None:
    health = healthy()
    assert health.record_restart(5.0) is None and health.weight_factor(5.0) == 0.1
    eject(health, 50.0)
    health.incarnation = "p3"
    transition = health.record_restart(51.0)
    assert transition is not None and transition.new is HealthState.PROBING and transition.incarnation == "p3"
    assert health.has_due_trial(51.0)
    health.breaker.begin_trial(51.0)
    end = health.end_trial(HealthOutcome.SUCCESS, 52.0, epoch=health.breaker.epoch)
    assert end is not None and (end.new, end.reason) == (HealthState.HEALTHY, "the trial request succeeded")


def test_no_trial_is_due_while_another_reason_holds() -> None:
    health = healthy()
    eject(health)
    health.drain(1.0)
    health.advance(30.0)
    assert not health.has_due_trial(30.0)
    health.undrain(31.0)
    assert health.has_due_trial(31.0)


def test_probes_that_succeed_do_not_end_an_ejection_they_did_not_see() -> None:
    health = healthy()
    eject(health)
    for _ in range(10):
        assert health.record_probe(1.0, is_success=True, reason="") is None
    assert health.state is HealthState.EJECTED, "/readyz answers, but requests fail"

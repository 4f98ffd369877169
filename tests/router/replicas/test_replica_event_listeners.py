"""ReplicaEvents: which transitions are warnings in the log, and a listener that fails stops nothing."""

import logging

import pytest

from chairlift.router.health.health_state import HealthState, Transition, TransitionCause
from chairlift.router.replicas.replica_event_listeners import ReplicaEvents
from support_replica_set import TransitionLog


def transition(new: HealthState, old: HealthState = HealthState.PENDING) -> Transition:
    return Transition(
        replica_id="http://a:1", old=old, new=new, cause=TransitionCause.PROBES, reason="why",
        at_seconds=0.0,
    )  # fmt: skip


@pytest.mark.parametrize("state", HealthState)
def test_only_bad_news_are_warnings(state: HealthState, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ReplicaEvents().emit(transition(state))
    (record,) = caplog.records
    assert record.getMessage() == f"replica http://a:1 is {state}, was pending: why"
    assert record.levelname == ("WARNING" if state in {"ejected", "unhealthy"} else "INFO")


@pytest.mark.parametrize(("old", "new", "is_warning"), [
    ("unhealthy", "healthy", True), ("probing", "healthy", True), ("not_ready", "healthy", True),
    ("drained", "healthy", False), ("healthy", "not_ready", True), ("unhealthy", "not_ready", False),
    ("not_ready", "unhealthy", False), ("healthy", "unhealthy", True), ("healthy", "drained", False),
])  # fmt: skip
def test_the_end_of_a_failure_is_shown_like_its_beginning(
    old: str, new: str, is_warning: bool, caplog: pytest.LogCaptureFixture
) -> None:
    ReplicaEvents().emit(transition(HealthState(new), HealthState(old)))
    assert bool(caplog.records) is is_warning


def test_no_transition_is_no_event(caplog: pytest.LogCaptureFixture) -> None:
    events, log = ReplicaEvents(), TransitionLog()
    events.listeners.append(log)
    events.emit(None)
    assert log.transitions == [] and not caplog.records


def test_a_listener_that_fails_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    events, log, calls = ReplicaEvents(), TransitionLog(), []

    class Broken:
        def on_transition(self, transition: Transition) -> None:
            raise RuntimeError("broken")

    def broken(*arguments: object) -> None:
        raise RuntimeError("broken")

    events.listeners += [Broken(), log]
    events.restart_listeners += [broken, lambda *each: calls.append(each)]
    events.membership_listeners += [broken, lambda: calls.append(())]
    events.emit(transition(HealthState.HEALTHY))
    events.restarted("http://a:1", "p2")
    events.membership_changed()
    assert len(log.transitions) == 1 and calls == [("http://a:1", "p2"), ()]
    assert caplog.text.count("a listener of replica events failed") == 3


def test_a_new_process_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ReplicaEvents().restarted("http://a:1", "p2")
    ReplicaEvents().restarted("http://a:1", "")
    assert [record.getMessage() for record in caplog.records] == [
        "the process of replica http://a:1 is a new one: p2",
        "the process of replica http://a:1 is a new one: of unknown id",
    ]

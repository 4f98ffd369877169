"""RestartBackoff: the first restart is at once, later pauses double up to a maximum; a limit for each period."""

from chairlift.engine.ipc.liveness_limits import LivenessConfig
from chairlift.engine.ipc.restart_backoff import RestartBackoff


def test_the_first_restart_is_at_once_and_the_pause_doubles() -> None:
    restarts = RestartBackoff(LivenessConfig(max_restarts=4, restart_period=100, first_backoff=0.5))
    assert [restarts.next(now) for now in (0, 1, 2, 3, 4)] == [0.0, 0.5, 1.0, 2.0, None]
    assert restarts.count == 4


def test_old_restarts_do_not_count() -> None:
    restarts = RestartBackoff(LivenessConfig(max_restarts=1, restart_period=100))
    assert restarts.next(0) == 0.0
    assert restarts.next(99) is None
    assert restarts.next(100) == 0.0


def test_the_pause_has_an_end() -> None:
    restarts = RestartBackoff(LivenessConfig(max_restarts=100, restart_period=1e6))
    assert max(pause for now in range(100) if (pause := restarts.next(now)) is not None) == 30.0


def test_no_restart_at_all_can_be_asked_for() -> None:
    assert RestartBackoff(LivenessConfig(max_restarts=0)).next(0) is None

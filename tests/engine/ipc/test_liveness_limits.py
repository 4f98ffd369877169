"""SilenceTimer, OperationTimer: only waking, undelayed time counts; LivenessConfig: values out of range are errors."""

import pytest

from chairlift.core.errors import ConfigError
from chairlift.engine.ipc.liveness_limits import LivenessConfig, OperationTimer, SilenceTimer
from support_shares import for_each


def test_silence_adds_up_until_a_message_arrives() -> None:
    silence = SilenceTimer(interval=1.0, now=10.0)
    assert [silence.elapsed(now) for now in (11.0, 12.0, 13.5)] == [1.0, 2.0, 3.5]
    silence.reset(14.0)
    assert silence.elapsed(14.5) == 0.5


def test_a_listener_that_slept_counts_no_silence() -> None:
    silence = SilenceTimer(interval=1.0, now=0.0)
    assert silence.elapsed(3600.0) == 2.0
    assert silence.elapsed(3601.0) == 3.0


def test_an_age_is_that_of_the_latest_thing_and_zero_between_two() -> None:
    age = OperationTimer(1.0, lambda: 7.0)
    assert age.elapsed(None, 5.0) == 0.0
    assert [age.elapsed(10.0, now) for now in (9.5, 10.5, 12.0)] == [0.0, 0.5, 2.0]
    assert age.elapsed(None, 12.5) == 0.0
    assert age.elapsed(12.6, 13.0) == pytest.approx(0.4)
    assert age.elapsed(12.6, 3600.0) == pytest.approx(2.4), "the process slept"


def test_delays_by_other_programs_are_no_part_of_an_age() -> None:
    delays = iter([5.0, 6.5, 6.5, 100.0])
    age = OperationTimer(1.0, lambda: next(delays))
    assert [age.elapsed(10.0, now) for now in (10.0, 12.0, 14.0)] == [0.0, 0.5, 2.5]
    assert age.elapsed(10.0, 15.0) == 0.5, "a tenth counts always, so that an endless step is noticed"


def test_both_sides_send_a_heartbeat_a_second_at_least() -> None:
    assert LivenessConfig().interval == LivenessConfig(heartbeat_timeout=600).interval == 1.0
    assert LivenessConfig(heartbeat_timeout=0.5).interval == 0.1


@for_each("name", ["heartbeat_timeout", "step_timeout", "stop_timeout", "restart_period"])
@for_each("value", [0, -1.0, float("nan"), float("inf")])
def test_times_must_be_positive(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        LivenessConfig(**{name: value})


@for_each(("ages", "reason"), [
    ((0.0, 0.0), ""), ((120.0, 1800.0), ""),
    ((120.1, 0.0), "the engine hangs: a step takes 120.1 s, the limit is 120 s"),
    ((0.0, 1800.1), "the engine hangs: a warm-up takes 1800.1 s, the limit is 1800 s"),
])  # fmt: skip
def test_a_step_and_a_warm_up_have_limits(ages: tuple[float, float], reason: str) -> None:
    assert LivenessConfig().hang_reason(*ages) == reason


def test_a_negative_number_of_restarts_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_restarts must be at least 0, got -1"):
        LivenessConfig(max_restarts=-1)

"""ConsecutiveProbes: three failures or two successes change the verdict; the times of the next probe."""

from random import Random

import pytest

from chairlift.core.errors import ConfigError
from chairlift.router.health.consecutive_probes import ConsecutiveProbes, ProbeConfig
from support_shares import for_each


@for_each(
    ("results", "verdicts"),
    [
        ("+", "+"),  # the first one decides
        ("-", "-"),
        ("-+", "-+"),  # a replica that starts needs one success
        ("+--", "+++"),
        ("+---", "+++-"),
        ("+--+--+", "+++++++"),
        ("+---+", "+++--"),
        ("+---++", "+++--+"),
        ("+---+-+", "+++----"),
        ("+---+-++", "+++----+"),
        ("-----+---", "-----+++-"),
    ],
)
def test_three_failures_and_two_successes_change_the_verdict(results: str, verdicts: str) -> None:
    health, verdict = ConsecutiveProbes(ProbeConfig()), None
    for result, expected in zip(results, verdicts, strict=True):
        changed = health.record(is_success=result == "+")
        assert health.is_healthy is (expected == "+")
        assert changed is (health.is_healthy is not verdict)
        verdict = health.is_healthy


def test_a_replica_may_begin_healthy() -> None:
    health = ConsecutiveProbes(ProbeConfig(), is_healthy=True)
    assert not health.record(is_success=False) and health.is_healthy


def delays(health: ConsecutiveProbes, seed: int = 0) -> list[float]:
    random = Random(seed)
    return [health.next_delay_seconds(random) for _ in range(1000)]


def test_probes_are_due_every_five_seconds_with_jitter() -> None:
    health = ConsecutiveProbes(ProbeConfig())
    health.record(is_success=True)
    assert 4.5 <= min(delays(health)) < 4.6 and 5.4 < max(delays(health)) <= 5.5
    assert delays(health) == delays(health) != delays(health, seed=1)
    health.record(is_success=False)
    assert min(delays(health)) >= 4.5


def test_a_replica_that_was_never_healthy_is_probed_every_second() -> None:
    health = ConsecutiveProbes(ProbeConfig(jitter=0))
    health.record(is_success=False)
    assert set(delays(health)) == {1.0}
    assert set(delays(ConsecutiveProbes(ProbeConfig(jitter=0, interval_seconds=0.5)))) == {0.5}


@for_each(
    ("fields", "message"),
    [
        ({"interval_seconds": 0.0}, "interval_seconds of probes must be .* got 0"),
        ({"start_interval_seconds": float("nan")}, "start_interval_seconds of probes must be .* got nan"),
        ({"timeout_seconds": float("inf")}, "timeout_seconds of probes must be .* got inf"),
        ({"max_failures": 0}, "max_failures of probes must be at least 1, got 0"),
        ({"min_successes": 0}, "min_successes of probes must be at least 1, got 0"),
        ({"jitter": 1.0}, "jitter of probes must be between 0 and 1, got 1"),
    ],
)
def test_settings_without_sense_are_refused(fields: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ProbeConfig(**fields)  # type: ignore[arg-type]

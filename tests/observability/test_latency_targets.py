"""LatencyTargets: given in milliseconds, kept in seconds."""

from chairlift.observability.latency_targets import LatencyTargets


def test_targets_are_given_in_milliseconds() -> None:
    assert LatencyTargets.of_milliseconds(250, None) == LatencyTargets(ttft_seconds=0.25)
    assert LatencyTargets.of_milliseconds(None, 20) == LatencyTargets(itl_seconds=0.02)

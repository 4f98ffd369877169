"""NoiseSample: gaps of the clock are measured, each core is sampled, and the wait is limited."""

import os
from collections.abc import Callable

import pytest

from chairlift.bench.report import machine_noise
from chairlift.bench.report.machine_noise import (
    MAX_LOST_SHARE,
    NoiseSample,
    measure_core,
    sample_cores,
    wait_until_quiet,
)


def clock(*steps: float) -> Callable[[], float]:
    moments, now = [], 0.0
    for step in steps:
        now += step
        moments.append(now)
    return iter(moments).__next__


def test_gaps_are_added_up_and_the_longest_is_kept() -> None:
    seen = measure_core(1.0, clock(0.0, *[1e-4] * 5000, 0.1, *[1e-4] * 1000, 0.3, 0.2))
    assert seen.lost == pytest.approx(0.6 / 1.2, rel=1e-3) and seen.longest_seconds == pytest.approx(0.3)
    assert not seen.is_quiet
    assert measure_core(0.1, clock(*[1e-5] * 20_000)).lost == 0.0


def test_every_core_is_looked_at_and_the_worst_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    usable = os.sched_getaffinity(0)
    seen = []

    def fake(seconds: float) -> NoiseSample:
        seen.append(os.sched_getaffinity(0))
        return NoiseSample(0.1 * len(seen), 0.01)

    monkeypatch.setattr(machine_noise, "measure_core", fake)
    assert sample_cores().lost == pytest.approx(0.1 * min(len(usable), machine_noise.MAX_CORES))
    assert seen == [{core} for core in sorted(usable)[: machine_noise.MAX_CORES]] and os.sched_getaffinity(0) == usable


def test_it_waits_for_a_quiet_machine_but_not_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_noise, "PAUSE_SECONDS", 0.0)
    looks = iter([NoiseSample(0.5, 0.1), NoiseSample(0.2, 0.1), NoiseSample(MAX_LOST_SHARE, 0.01)])
    monkeypatch.setattr(machine_noise, "sample_cores", lambda: next(looks))
    assert wait_until_quiet(60.0).lost == MAX_LOST_SHARE
    monkeypatch.setattr(machine_noise, "sample_cores", lambda: NoiseSample(0.5, 0.1))
    assert not wait_until_quiet(0.0).is_quiet

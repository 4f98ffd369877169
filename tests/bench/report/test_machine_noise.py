"""Quiet: gaps in what a clock shows are seen, each core is looked at, and patience has an end."""

import os
from collections.abc import Callable

import pytest

from chairlift.bench.report import machine_noise
from chairlift.bench.report.machine_noise import CALM, NoiseSample, look, measure_core, wait_until_quiet


def clock(*steps: float) -> Callable[[], float]:
    moments, now = [], 0.0
    for step in steps:
        now += step
        moments.append(now)
    return iter(moments).__next__


def test_gaps_are_added_up_and_the_longest_is_kept() -> None:
    seen = measure_core(1.0, clock(0.0, *[1e-4] * 5000, 0.1, *[1e-4] * 1000, 0.3, 0.2))
    assert seen.lost == pytest.approx(0.6 / 1.2, rel=1e-3) and seen.longest_seconds == pytest.approx(0.3)
    assert not seen.is_calm
    assert measure_core(0.1, clock(*[1e-5] * 20_000)).lost == 0.0


def test_every_core_is_looked_at_and_the_worst_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    usable = os.sched_getaffinity(0)
    seen = []

    def fake(seconds: float) -> NoiseSample:
        seen.append(os.sched_getaffinity(0))
        return NoiseSample(0.1 * len(seen), 0.01)

    monkeypatch.setattr(machine_noise, "measure_core", fake)
    assert look().lost == pytest.approx(0.1 * min(len(usable), machine_noise.MAX_CORES))
    assert seen == [{core} for core in sorted(usable)[: machine_noise.MAX_CORES]] and os.sched_getaffinity(0) == usable


def test_it_waits_for_calm_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_noise, "PAUSE_SECONDS", 0.0)
    looks = iter([NoiseSample(0.5, 0.1), NoiseSample(0.2, 0.1), NoiseSample(CALM, 0.01)])
    monkeypatch.setattr(machine_noise, "look", lambda: next(looks))
    assert wait_until_quiet(60.0).lost == CALM
    monkeypatch.setattr(machine_noise, "look", lambda: NoiseSample(0.5, 0.1))
    assert not wait_until_quiet(0.0).is_calm

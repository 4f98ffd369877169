"""Quiet: how much of its cores this machine gives away to others just now, seen by a loop that looks at the clock.

A neighbour on the same host takes a virtual core away without a trace in /proc/stat; a loop that does nothing but read
the clock sees each such gap. A measurement that is compared with another begins when there are few.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

GAP_SECONDS = 2e-4
LOOK_SECONDS = 0.25
"""For each core."""

MAX_CORES = 8
"""Looked at; on larger machines the first ones stand for all."""

CALM = 0.05
"""Share of the time that may be lost on the worst core."""

PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class NoiseSample:
    """What was seen.

    Attributes:
        lost: share of the time that was lost in gaps, on the worst core.
        longest_seconds: of all gaps.
        waited_seconds: before it was quiet enough, or patience was over.
    """

    lost: float
    longest_seconds: float
    waited_seconds: float = 0.0

    @property
    def is_calm(self) -> bool:
        """Whether a measurement may begin."""
        return self.lost <= CALM


def measure_core(seconds: float, clock: Callable[[], float] = time.perf_counter) -> NoiseSample:
    """Watch the core that this thread is on for so long."""
    began = last = clock()
    lost = longest = 0.0
    while last - began < seconds:
        now = clock()
        if (gap := now - last) > GAP_SECONDS:
            lost, longest = lost + gap, max(longest, gap)
        last = now
    return NoiseSample(lost / (last - began), longest)


def look(seconds: float = LOOK_SECONDS) -> NoiseSample:
    """Watch each core that this process may use, one after the other, for so long each."""
    if not hasattr(os, "sched_setaffinity"):
        return measure_core(seconds)
    usable = os.sched_getaffinity(0)
    found = []
    try:
        for core in sorted(usable)[:MAX_CORES]:
            os.sched_setaffinity(0, {core})
            found.append(measure_core(seconds))
    finally:
        os.sched_setaffinity(0, usable)
    return NoiseSample(max(each.lost for each in found), max(each.longest_seconds for each in found))


def wait_until_quiet(patience: float) -> NoiseSample:
    """Look until it is quiet, for so many seconds at most; returns the last look."""
    began = time.monotonic()
    while True:
        seen, waited = look(), time.monotonic() - began
        if seen.is_calm or waited >= patience:
            return NoiseSample(seen.lost, seen.longest_seconds, waited)
        time.sleep(PAUSE_SECONDS)

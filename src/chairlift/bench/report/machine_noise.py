"""NoiseSample: the share of its cores' time that this machine loses to others, measured by reading the clock in a loop.

Another virtual machine on the same host can take a core away without a trace in /proc/stat, but a loop that only reads
the clock sees each such gap. A measurement that is compared to another waits until the gaps are few.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

GAP_SECONDS = 2e-4
SAMPLE_SECONDS = 0.25
"""Duration of a sample of each core."""

MAX_CORES = 8
"""Most cores that are sampled; on larger machines the first ones represent all."""

MAX_LOST_SHARE = 0.05
"""Largest share of the worst core's time that may be lost to other load before a run starts."""

PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class NoiseSample:
    """The gaps of a sample.

    Attributes:
        lost: share of the time that was lost in gaps, on the worst core.
        longest_seconds: duration of the longest gap.
        waited_seconds: time until the machine was quiet, or until the limit of the wait.
    """

    lost: float
    longest_seconds: float
    waited_seconds: float = 0.0

    @property
    def is_quiet(self) -> bool:
        """Whether the machine is quiet enough for a measurement."""
        return self.lost <= MAX_LOST_SHARE


def measure_core(seconds: float, clock: Callable[[], float] = time.perf_counter) -> NoiseSample:
    """Sample the core of this thread for a number of seconds."""
    started_at = last = clock()
    lost = longest = 0.0
    while last - started_at < seconds:
        now = clock()
        if (gap := now - last) > GAP_SECONDS:
            lost, longest = lost + gap, max(longest, gap)
        last = now
    return NoiseSample(lost / (last - started_at), longest)


def sample_cores(seconds: float = SAMPLE_SECONDS) -> NoiseSample:
    """Sample each core that this process may use, one after the other, for `seconds` each."""
    if not hasattr(os, "sched_setaffinity"):
        return measure_core(seconds)
    usable = os.sched_getaffinity(0)
    samples = []
    try:
        for core in sorted(usable)[:MAX_CORES]:
            os.sched_setaffinity(0, {core})
            samples.append(measure_core(seconds))
    finally:
        os.sched_setaffinity(0, usable)
    return NoiseSample(max(each.lost for each in samples), max(each.longest_seconds for each in samples))


def wait_until_quiet(max_wait_seconds: float) -> NoiseSample:
    """Sample until the machine is quiet, at most `max_wait_seconds`; returns the last sample."""
    started_at = time.monotonic()
    while True:
        sample, waited = sample_cores(), time.monotonic() - started_at
        if sample.is_quiet or waited >= max_wait_seconds:
            return NoiseSample(sample.lost, sample.longest_seconds, waited)
        time.sleep(PAUSE_SECONDS)

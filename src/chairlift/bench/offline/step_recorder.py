"""StepRecorder: collects the step stats of a run and summarizes KV cache usage and waste."""

import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from chairlift.engine.step_stats import StepStats

MAX_POINTS = 400
"""Most points of the timeline in a report, for plots."""


class StepRecorder:
    """Collects StepStats from the engine thread; its summary covers the steps since it was created."""

    def __init__(self, total_kv_tokens: int, clock: Callable[[], float] = time.perf_counter) -> None:
        """Start without steps; `total_kv_tokens` is the capacity of the block pool in tokens."""
        self._total_kv_tokens = total_kv_tokens
        self._clock = clock
        self._lock = threading.Lock()
        self._timed_steps: list[tuple[float, StepStats]] = []

    def __call__(self, stats: StepStats) -> None:
        """Record one step; called on the engine thread."""
        with self._lock:
            self._timed_steps.append((self._clock(), stats))

    def summarize(self, started_at: float, preemptions_before: int = 0) -> dict[str, Any]:
        """Return the part of a report that comes from steps.

        Means are weighted by the steps' duration; `mean_by_step` weights every step alike. kv_cache_usage is the share
        of the pool's KV token slots that sequences hold. kv_cache_waste is the share of the held slots that have no
        token yet; a step after which no slot is held has no waste. `started_at` is the run's start, by the recorder's
        clock.
        """
        with self._lock:
            timed_steps = list(self._timed_steps)
        steps = [stats for _, stats in timed_steps]
        allocated = [stats for stats in steps if stats.allocated_kv_tokens]
        use = [(stats.allocated_kv_tokens / self._total_kv_tokens, duration_ms(stats)) for stats in steps]
        waste = [(stats.unused_kv_tokens / stats.allocated_kv_tokens, duration_ms(stats)) for stats in allocated]
        return {
            "steps": len(steps),
            "step_seconds": sum(map(duration_ms, steps)) / 1000,
            "preemptions": (steps[-1].preemptions if steps else preemptions_before) - preemptions_before,
            "peak_running_requests": max((max(stats.running, stats.num_sequences) for stats in steps), default=0),
            "peak_waiting_requests": max((stats.waiting for stats in steps), default=0),
            "mean_batch": _mean([(float(stats.num_sequences), 1.0) for stats in steps]),
            "kv_cache_usage": {**_means(use), "total_kv_tokens": self._total_kv_tokens},
            "kv_cache_waste": _means(waste),
            "timeline": _timeline(timed_steps, started_at),
        }


def duration_ms(stats: StepStats) -> float:
    """Return the milliseconds of a step, summed over its phases."""
    return stats.schedule_ms + stats.launch_ms + stats.collect_ms + stats.commit_ms


def _means(pairs: list[tuple[float, float]]) -> dict[str, float | None]:
    return {
        "mean": _mean(pairs),
        "mean_by_step": _mean([(value, 1.0) for value, _ in pairs]),
        "peak": max((value for value, _ in pairs), default=None),
    }


def _mean(pairs: Iterable[tuple[float, float]]) -> float | None:
    pairs = list(pairs)
    weight = math.fsum(each for _, each in pairs)
    if weight <= 0:
        return None
    return math.fsum(value * each for value, each in pairs) / weight


def _timeline(timed_steps: list[tuple[float, StepStats]], started_at: float) -> dict[str, list[float]]:
    """Return columns of at most MAX_POINTS evenly picked steps; `at` is the step's end in seconds."""
    count = len(timed_steps)
    picked = (
        timed_steps
        if count <= MAX_POINTS
        else [timed_steps[i * (count - 1) // (MAX_POINTS - 1)] for i in range(MAX_POINTS)]
    )
    columns: dict[str, list[float]] = {"at": [round(at - started_at, 4) for at, _ in picked]}
    for name in ("running", "waiting", "num_sequences", "num_tokens", "allocated_kv_tokens", "unused_kv_tokens"):
        columns[name] = [getattr(stats, name) for _, stats in picked]
    columns["milliseconds"] = [round(duration_ms(stats), 3) for _, stats in picked]
    return columns

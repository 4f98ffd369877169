"""StepWatch: the steps of a run as the engine counts them; how full the cache was, and how much of it was waste."""

import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from chairlift.engine.stats import StepStats

MAX_POINTS = 400
"""Points of the timeline that a report keeps, for plots."""


class StepRecorder:
    """Takes StepStats from the engine's thread; everything it says is about the steps since it was made."""

    def __init__(self, total_slots: int, clock: Callable[[], float] = time.perf_counter) -> None:
        """Watch a pool of so many token slots."""
        self._total_slots = total_slots
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: list[tuple[float, StepStats]] = []

    def __call__(self, stats: StepStats) -> None:
        """Take one step."""
        with self._lock:
            self._seen.append((self._clock(), stats))

    def summarize(self, began: float, preemptions_before: int = 0) -> dict[str, Any]:
        """Return the part of a report that comes from steps.

        Means are weighted by the steps' duration; `mean_by_step` counts every step the same. kv_use is the share of the
        pool's token slots that somebody holds, kv_waste the share of the held slots that hold no token yet; steps after
        which nobody holds a slot have no waste. `began` is the run's start on the clock.
        """
        with self._lock:
            seen = list(self._seen)
        steps = [stats for _, stats in seen]
        held = [stats for stats in steps if stats.allocated_kv_tokens]
        use = [(stats.allocated_kv_tokens / self._total_slots, duration_ms(stats)) for stats in steps]
        waste = [(stats.unused_kv_tokens / stats.allocated_kv_tokens, duration_ms(stats)) for stats in held]
        return {
            "steps": len(steps),
            "step_seconds": sum(map(duration_ms, steps)) / 1000,
            "preemptions": (steps[-1].preemptions if steps else preemptions_before) - preemptions_before,
            "peak_running_requests": max((max(stats.running, stats.num_sequences) for stats in steps), default=0),
            "peak_waiting_requests": max((stats.waiting for stats in steps), default=0),
            "mean_batch": _mean([(float(stats.num_sequences), 1.0) for stats in steps]),
            "kv_use": {**_means(use), "total_slots": self._total_slots},
            "kv_waste": _means(waste),
            "timeline": _timeline(seen, began),
        }


def duration_ms(stats: StepStats) -> float:
    """Return the milliseconds of a step, all phases together."""
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


def _timeline(seen: list[tuple[float, StepStats]], began: float) -> dict[str, list[float]]:
    """Columns of evenly picked steps; at: seconds after the start, when the step was over."""
    count = len(seen)
    picked = seen if count <= MAX_POINTS else [seen[i * (count - 1) // (MAX_POINTS - 1)] for i in range(MAX_POINTS)]
    columns: dict[str, list[float]] = {"at": [round(at - began, 4) for at, _ in picked]}
    for name in ("running", "waiting", "num_sequences", "num_tokens", "allocated_kv_tokens", "unused_kv_tokens"):
        columns[name] = [getattr(stats, name) for _, stats in picked]
    columns["milliseconds"] = [round(duration_ms(stats), 3) for _, stats in picked]
    return columns

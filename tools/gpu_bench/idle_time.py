"""measure_idle: profiles decode steps and returns the share of time in which the device computes nothing."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

TOP_KERNELS = 15
"""Kernels of the longest total time in the report."""


def busy_and_span(intervals: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Return the length of the union of intervals (start, end), and the time from first start to last end."""
    ordered = sorted(intervals)
    if not ordered:
        return 0.0, 0.0
    busy, end = 0.0, ordered[0][0]
    for begin, finish in ordered:
        busy += max(0.0, finish - max(begin, end))
        end = max(end, finish)
    return busy, end - ordered[0][0]


def is_work(event: Any, device_type: str) -> bool:
    """Return whether an event of the profiler is work of a type of device, and no range that a user named."""
    return event.device_type.name == device_type and not getattr(event, "is_user_annotation", False)


def measure_idle(device: torch.device, run: Callable[[], object], num_steps: int) -> dict[str, Any]:
    """Profile `run`, which runs `num_steps` steps; times are in seconds.

    Raises RuntimeError where the profiler records no work of the device.
    """
    on_cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_cuda else ProfilerActivity.CPU]) as recorded:
        run()
        if on_cuda:
            torch.cuda.synchronize(device)
    wanted = "CUDA" if on_cuda else "CPU"
    events: Sequence[Any] = [each for each in recorded.events() if is_work(each, wanted)]
    busy, span = busy_and_span((each.time_range.start, each.time_range.end) for each in events)
    if span <= 0:
        raise RuntimeError(f"the profiler recorded no work of {device}; it may lack the permission to trace the GPU")
    totals: Counter[str] = Counter()
    counts: Counter[str] = Counter(each.name for each in events)
    for each in events:
        totals[each.name] += each.time_range.end - each.time_range.start
    return {
        "idle_share": 1 - busy / span,
        "busy_seconds_per_step": busy / 1e6 / num_steps,
        "span_seconds_per_step": span / 1e6 / num_steps,
        "kernels_per_step": len(events) / num_steps,
        "top_kernels": [
            {"name": name, "seconds_per_step": total / 1e6 / num_steps, "calls_per_step": counts[name] / num_steps}
            for name, total in totals.most_common(TOP_KERNELS)
        ],
    }

"""Percentiles: summarizes samples as mean and percentiles."""

import math
from collections.abc import Iterable, Sequence

PERCENTILES = (50, 90, 99)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of at least one ascending sample, by linear interpolation (like numpy)."""
    position = (len(ordered) - 1) * percent / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def summarize(samples: Iterable[float]) -> dict[str, float | None]:
    """Return mean, p50, p90 and p99 (linear interpolation); all None without samples."""
    ordered = sorted(samples)
    if not ordered:
        return {"mean": None, **{f"p{percent}": None for percent in PERCENTILES}}
    mean = math.fsum(ordered) / len(ordered)
    return {"mean": mean, **{f"p{percent}": percentile(ordered, percent) for percent in PERCENTILES}}


def downsample(samples: Iterable[float], most: int) -> list[float]:
    """Return at most `most` samples in ascending order, evenly spaced by rank, including both ends."""
    ordered = sorted(samples)
    if len(ordered) <= most:
        return ordered
    return [ordered[round(index * (len(ordered) - 1) / (most - 1))] for index in range(most)]

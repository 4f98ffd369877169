"""Tallies: counts and histograms that are written for every token, where the library's would cost too much.

The library's own take a lock and look through their bounds one by one: two microseconds where a streamed token costs
twenty. These are written by one thread each; whoever reads them meanwhile may miss the last one.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString


class Count:
    """A counter."""

    def __init__(self, name: str, help: str) -> None:
        self._name, self._help = name, help
        self._value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Count so much more; it must not be negative."""
        self._value += amount

    def collect(self) -> Iterator[Metric]:
        """Yield the family, as it is now."""
        family = CounterMetricFamily(self._name, self._help)
        family.add_metric([], self._value)
        yield family


class Spread:
    """A histogram."""

    def __init__(self, name: str, help: str, bounds: Sequence[float]) -> None:
        """Begin; `bounds` are the upper ones, in order, without infinity."""
        self._name, self._help = name, help
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Take a value; one on a bound belongs below it."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[Metric]:
        """Yield the family, as it is now."""
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        family = HistogramMetricFamily(self._name, self._help)
        family.add_metric([], list(zip(names, accumulate(self._counts), strict=True)), self._sum)
        yield family

"""MetricsPage: the values of a page in Prometheus' text format, with their labels."""

import math
import re
from collections.abc import Callable

Labels = dict[str, str]

_SERIES = re.compile(r'^chairlift_(\w+)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})? (\S+)(?: .*)?$', re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class MetricsPage:
    """One page; names are without the prefix `chairlift_`."""

    def __init__(self, text: str) -> None:
        """Parse a page; a line that is not a series of Chairlift is ignored."""
        self._series: dict[str, list[tuple[Labels, float]]] = {}
        for name, labels, value in _SERIES.findall(text):
            try:
                number = float(value)
            except ValueError:
                continue
            if not math.isnan(number):  # NaN is a value that the server does not know
                self._series.setdefault(name, []).append((dict(_LABEL.findall(labels)), number))

    def values(self, name: str) -> list[tuple[Labels, float]]:
        """Return the labels and values of a metric; none that are NaN."""
        return self._series.get(name, [])

    def total(self, name: str, where: Callable[[Labels], bool] = lambda labels: True) -> float | None:
        """Return the sum of a metric over the series with these labels; None without any."""
        numbers = [value for labels, value in self.values(name) if where(labels)]
        return sum(numbers) if numbers else None


def increase(
    before: MetricsPage, now: MetricsPage, name: str, where: Callable[[Labels], bool] = lambda labels: True
) -> float:
    """Return how much a counter grew between two pages; a counter that began anew counts from zero."""
    old, new = before.total(name, where) or 0.0, now.total(name, where) or 0.0
    return new - old if new >= old else new


def quantile(before: MetricsPage | None, now: MetricsPage, name: str, share: float) -> tuple[float, int] | None:
    """Return a quantile of a histogram between two pages, or since the start without a page before.

    Returns the upper bound of the bucket in which it lies, and the number of observations; None without any. The bound
    of the last bucket is that of the one before: nothing more is known.
    """
    counts: dict[float, float] = {}
    for page, sign in ((now, 1), (before, -1)):
        for labels, value in page.values(f"{name}_bucket") if page is not None else ():
            try:
                bound = float(labels.get("le", "inf"))
            except ValueError:
                continue
            counts[bound] = counts.get(bound, 0.0) + sign * value
    if not counts or min(counts.values()) < 0:  # the server has restarted between the pages
        return None if before is None or not counts else quantile(None, now, name, share)
    bounds = sorted(counts)
    number = counts[bounds[-1]]
    if number <= 0:
        return None
    bound = next(each for each in bounds if counts[each] >= share * number)
    finite = [each for each in bounds if each != float("inf")]
    return (bound if bound != float("inf") else finite[-1] if finite else bound), int(number)

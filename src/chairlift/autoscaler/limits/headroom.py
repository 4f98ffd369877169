"""Headroom: the fewest replicas that hold the load with a margin, so that the pool does not grow at once again."""

import math


def num_with_headroom(need: float, *, margin: float, tolerance: float) -> int:
    """Return the fewest replicas whose predicted utilisation has the margin.

    `need` is the highest measured need of the stabilisation time. N replicas have the utilisation need / N of their
    target. The pool would grow at 1 + tolerance; the load must be able to rise by `margin` before that:

        need * (1 + margin) <= N * (1 + tolerance)
    """
    return math.ceil(need * (1 + margin) / (1 + tolerance) - 1e-9)


def need_that_fits_half(*, margin: float, tolerance: float) -> float:
    """Return the need as a share of the replicas that half of them hold with headroom."""
    return 0.5 * (1 + tolerance) / (1 + margin)

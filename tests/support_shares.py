"""each_value, choose_share: the part of all cases of a test that `make test` takes; `make test-all` takes all."""

import itertools
import operator
import os
import random
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

FULL = os.environ.get("CHAIRLIFT_FULL", "") not in ("", "0")
"""Whether all seeds, steps and cases run (`make test-all`)."""


def choose_share(cases: Sequence[Sequence[Hashable]], count: int, first: int = 0) -> set[int]:
    """Return the indices of `count` cases, in which the values of every parameter are as evenly used as can be.

    Cases that are equally good are taken as far apart as can be.

    Args:
        cases: the values of the parameters of each case.
        count: number of cases to choose.
        first: index of the case with which to begin. Tests of the same parameters that begin at different places use
            more of their values together.
    """
    chosen: dict[int, None] = {}
    num_equal, distance = [0] * len(cases), [0] * len(cases)  # to the chosen cases: equal values, places between
    while len(chosen) < min(count, len(cases)):
        left = (at for at in range(len(cases)) if at not in chosen)
        best = min(left, key=lambda at: (num_equal[at], -distance[at], at)) if chosen else first
        for at, case in enumerate(cases):
            num_equal[at] += sum(map(operator.eq, case, cases[best]))
            distance[at] = min(distance[at], abs(at - best)) if chosen else abs(at - best)
        chosen[best] = None
    return set(chosen)


def each_value(*factors: Iterable[Any], count: int = 0) -> list[tuple[Any, ...]]:
    """Return combinations of one value of each factor: all of them, or few that have each value at least once.

    Args:
        factors: the values of each parameter.
        count: number of the few, without repetitions; never less than the longest factor has values.
    """
    values = [list(factor) for factor in factors]
    if FULL:
        return list(itertools.product(*values))
    count, columns = max(count, *map(len, values)), []
    for number, factor in enumerate(values):
        column = [factor[at % len(factor)] for at in range(count)]
        random.Random(number).shuffle(column)  # else factors of equal length would always meet in the same pairs
        columns.append(column)
    return list(dict.fromkeys(zip(*columns, strict=True)))

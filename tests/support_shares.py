"""each_value: the part of all combinations of parameters that `make test` takes; `make test-all` takes all."""

import itertools
import random
from collections.abc import Iterable
from typing import Any

from conftest import FULL


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

"""choose_share, each_value: the part of all cases that `make test` takes; for_each: many short cases as one test."""

import functools
import inspect
import itertools
import operator
import os
import random
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import pytest

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


def for_each(names: str | Sequence[str], values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test with every case as one test, in place of `pytest.mark.parametrize`, whose cases cost 4 ms each.

    All cases run; those that fail are named together. Fixtures of the test are the same for all cases.

    Args:
        names: names of the parameters, separated by commas or as a sequence.
        values: the cases: tuples of values, or the values of a single parameter.
    """
    values = list(values)
    assert not any(isinstance(case, type(pytest.param())) for case in values), "a case of a loop has no id and no marks"
    parameters = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    cases = [dict(zip(parameters, (case,) if isinstance(names, str) and len(parameters) == 1 else case, strict=True))
             for case in values]  # fmt: skip

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run_all(**others: Any) -> None:
            errors = []
            for case in cases:
                try:
                    test(**case, **others)
                except Exception as error:
                    error.add_note(f"case: {case}")
                    errors.append(error)
            if len(errors) == 1:
                raise errors[0]
            if errors:
                raise ExceptionGroup(f"{len(errors)} of {len(cases)} cases", errors)

        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in parameters]
        assert cases and len(left) + len(parameters) == len(signature.parameters), f"{names} of {test.__name__}"
        run_all.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return run_all

    return decorate


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

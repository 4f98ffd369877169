"""for_each: every case runs, those that fail are named, and pytest sees the other parameters as fixtures."""

import inspect
from pathlib import Path

import pytest

from support_shares import for_each


def test_every_case_runs_and_all_failures_are_named() -> None:
    seen = []

    @for_each("a, b", [(1, 2), (3, 3), (4, 5)])
    @for_each("c", ["x", "y"])
    def check(a: int, b: int, c: str) -> None:
        seen.append((a, b, c))
        assert a == b or c == "x"

    with pytest.raises(ExceptionGroup) as caught:
        check()
    assert len(seen) == 6 and not inspect.signature(check).parameters
    assert [error.__notes__ for error in caught.value.exceptions] == [
        ["case: {'c': 'y'}", "case: {'a': 1, 'b': 2}"], ["case: {'c': 'y'}", "case: {'a': 4, 'b': 5}"],
    ]  # fmt: skip


@for_each(("names",), [(["a"],)])
def test_a_sequence_of_one_name_has_tuples_of_one_value(names: list[str], tmp_path: Path) -> None:
    assert names == ["a"] and tmp_path.exists()


def test_what_is_no_case_or_no_parameter_is_an_error() -> None:
    def check(a: int) -> None:
        raise AssertionError

    for names, values in (("b", [1]), ("a", []), ("a", [pytest.param(1)])):
        with pytest.raises(AssertionError):
            for_each(names, values)(check)

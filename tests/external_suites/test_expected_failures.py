"""Expected failures: listed tests must fail with the listed message, and all other tests must pass."""

import pytest

from external_suites.expected_failures import ExpectedFailure, find_deviations, read_expected_failures, summary_lines
from external_suites.suite_runner import Outcome
from support_shares import for_each

PASSED = Outcome(passed=True)
FAILED = Outcome(passed=False, message="failure: Error code: 400 - no")


def entry(*tests: str, message: str = "400 - no", reason: str = "not supported") -> ExpectedFailure:
    return ExpectedFailure("some suite", reason, message, tests)


def test_all_is_as_listed() -> None:
    outcomes = {"A.test_a": PASSED, "A.test_b[x]": FAILED, "A.test_b[y]": FAILED, "A.test_c[x]": FAILED,
                "A.test_c[y]": PASSED}  # fmt: skip
    expected = [entry("A.test_b"), entry("A.test_c[x]", reason="x is wrong")]
    assert find_deviations(outcomes, expected) == []
    assert list(summary_lines("some suite 1.0", outcomes, expected)) == [
        "some suite 1.0: 5 ran, 2 passed, 3 are listed", "  2 not supported", "  1 x is wrong"
    ]  # fmt: skip


@for_each(
    ("outcomes", "expected", "deviation"),
    [
        ({"a": FAILED}, [], "a does not pass and is not listed: failure: Error code: 400 - no"),
        ({"a": Outcome(passed=False, message="skipped: x")}, [], "a does not pass and is not listed: skipped: x"),
        ({"a": PASSED}, [entry("a")], "a passes and is listed"),
        ({"a[x]": FAILED, "a[y]": PASSED}, [entry("a")], "a[y] passes and is listed"),
        ({"a": FAILED}, [entry("a", message="5")], "a fails without the message '5': failure: Error code: 400 - no"),
        ({"a": FAILED}, [entry("a", "b")], "b is listed, and there is no such test"),
        ({"a[x]": FAILED}, [entry("a", "a[y]")], "a[y] is listed, and there is no such test"),
        ({"a": FAILED}, [entry("a"), entry("a")], "a is listed twice"),
    ],
)  # fmt: skip
def test_a_deviation_from_the_list_is_reported(
    outcomes: dict[str, Outcome], expected: list[ExpectedFailure], deviation: str
) -> None:
    assert find_deviations(outcomes, expected) == [deviation]


@pytest.mark.parametrize("missing", ["suite", "reason", "message", "tests"])
def test_an_entry_needs_every_field(missing: str) -> None:
    fields = {"suite": "s", "reason": "r", "message": "x", "tests": ("a",)}
    assert ExpectedFailure(**fields).suite == "s"
    with pytest.raises(ValueError, match="needs suite, reason, message and tests"):
        ExpectedFailure(**{**fields, missing: () if missing == "tests" else ""})


def test_the_table_is_valid() -> None:
    expected = read_expected_failures()
    assert {entry.suite for entry in expected} == {"codex", "openai-python", "langchain-tests"}
    names = [(entry.suite, name) for entry in expected for name in entry.tests]
    assert len(names) == len(set(names)) > 40

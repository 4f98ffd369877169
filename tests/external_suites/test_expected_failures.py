"""Exceptions: what is listed must fail as it says, what is not must pass, and the table itself is one."""

import pytest

from external_suites.expected_failures import Entry, compare, read_entries, tell
from external_suites.outcomes import Outcome

GOOD = Outcome(passed=True)
REFUSED = Outcome(passed=False, says="failure: Error code: 400 - no")


def entry(*tests: str, says: str = "400 - no", reason: str = "nobody can") -> Entry:
    return Entry("some suite", reason, says, tests)


def test_all_is_as_listed() -> None:
    outcomes = {"A.test_a": GOOD, "A.test_b[x]": REFUSED, "A.test_b[y]": REFUSED, "A.test_c[x]": REFUSED,
                "A.test_c[y]": GOOD}  # fmt: skip
    entries = [entry("A.test_b"), entry("A.test_c[x]", reason="x is wrong")]
    assert compare(outcomes, entries) == []
    assert list(tell("some suite 1.0", outcomes, entries)) == [
        "some suite 1.0: 5 ran, 2 passed, 3 are listed", "  2 nobody can", "  1 x is wrong"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("outcomes", "entries", "fault"),
    [
        ({"a": REFUSED}, [], "a does not pass and is not listed: failure: Error code: 400 - no"),
        ({"a": Outcome(passed=False, says="skipped: x")}, [], "a does not pass and is not listed: skipped: x"),
        ({"a": GOOD}, [entry("a")], "a passes and is listed"),
        ({"a[x]": REFUSED, "a[y]": GOOD}, [entry("a")], "a[y] passes and is listed"),
        ({"a": REFUSED}, [entry("a", says="500")], "a fails, but does not say '500': failure: Error code: 400 - no"),
        ({"a": REFUSED}, [entry("a", "b")], "b is listed, and there is no such test"),
        ({"a[x]": REFUSED}, [entry("a", "a[y]")], "a[y] is listed, and there is no such test"),
        ({"a": REFUSED}, [entry("a"), entry("a")], "a is listed twice"),
    ],
)  # fmt: skip
def test_a_deviation_from_the_list_is_reported(outcomes: dict[str, Outcome], entries: list[Entry], fault: str) -> None:
    assert compare(outcomes, entries) == [fault]


@pytest.mark.parametrize("missing", ["suite", "reason", "says", "tests"])
def test_an_exception_says_all_it_has_to(missing: str) -> None:
    fields = {"suite": "s", "reason": "r", "says": "x", "tests": ("a",)}
    assert Entry(**fields).suite == "s"
    with pytest.raises(ValueError, match="needs suite, reason, says and tests"):
        Entry(**{**fields, missing: () if missing == "tests" else ""})


def test_the_table_is_one() -> None:
    entries = read_entries()
    assert {entry.suite for entry in entries} == {"openai-python", "langchain-tests"}
    names = [(entry.suite, name) for entry in entries for name in entry.tests]
    assert len(names) == len(set(names)) > 40

"""ExpectedFailure: tests that fail for a known reason; their outcomes are compared with expected_failures.toml."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from external_suites.suite_runner import Outcome

TABLE = Path(__file__).with_name("expected_failures.toml")


@dataclass(frozen=True, slots=True)
class ExpectedFailure:
    """Tests of one suite that fail for one reason.

    Attributes:
        suite: the beginning of the suite's name.
        reason: why the failure is correct.
        message: text that the error message of each test contains, so that a failure for another reason is reported.
        tests: the tests' names; a name without brackets stands for all parameters of a test.
    """

    suite: str
    reason: str
    message: str
    tests: tuple[str, ...]

    def __post_init__(self) -> None:
        """Raise ValueError if a field is empty."""
        if not (self.suite and self.reason and self.message and self.tests):
            raise ValueError(f"an expected failure needs suite, reason, message and tests, got {self}")


def read_expected_failures(table: Path = TABLE) -> list[ExpectedFailure]:
    """Read the TOML table. Raises ValueError or TypeError for a malformed one."""
    content = tomllib.loads(table.read_text(encoding="utf-8"))
    return [ExpectedFailure(**{**entry, "tests": tuple(entry["tests"])}) for entry in content["expected_failure"]]


def find_deviations(outcomes: Mapping[str, Outcome], expected: Sequence[ExpectedFailure]) -> list[str]:
    """Return one sentence for each outcome of a suite that differs from its expected failures."""
    listed = _listed_tests(outcomes, expected)
    return [
        *(f"{name} does not pass and is not listed: {outcome.message}"
          for name, outcome in outcomes.items() if not outcome.passed and name not in listed),
        *(f"{name} passes and is listed" for name in listed if outcomes[name].passed),
        *(f"{name} fails without the message {entry.message!r}: {outcomes[name].message}"
          for name, entry in listed.items()
          if not outcomes[name].passed and entry.message not in outcomes[name].message),
        *_find_wrong_names(outcomes, expected),
    ]  # fmt: skip


def summary_lines(name: str, outcomes: Mapping[str, Outcome], expected: Sequence[ExpectedFailure]) -> Iterator[str]:
    """Yield the lines that summarize a suite's outcomes, with the reason of each expected failure."""
    passed = sum(outcome.passed for outcome in outcomes.values())
    listed = _listed_tests(outcomes, expected)
    yield f"{name}: {len(outcomes)} ran, {passed} passed, {len(listed)} are listed"
    for entry in expected:
        yield f"  {sum(each is entry for each in listed.values())} {entry.reason}"


def _listed_tests(outcomes: Mapping[str, Outcome], expected: Sequence[ExpectedFailure]) -> dict[str, ExpectedFailure]:
    """Return test name -> its expected failure, for the tests that ran and are listed."""
    by_name = {name: entry for entry in expected for name in entry.tests}
    entries = {name: by_name.get(name) or by_name.get(name.partition("[")[0]) for name in outcomes}
    return {name: entry for name, entry in entries.items() if entry is not None}


def _find_wrong_names(outcomes: Mapping[str, Outcome], expected: Sequence[ExpectedFailure]) -> Iterator[str]:
    """Yield a sentence for each listed name that no test has, and for each name that is listed twice."""
    existing = {*outcomes, *(name.partition("[")[0] for name in outcomes)}
    listed: set[str] = set()
    for name in (name for entry in expected for name in entry.tests):
        if name not in existing:
            yield f"{name} is listed, and there is no such test"
        if name in listed:
            yield f"{name} is listed twice"
        listed.add(name)

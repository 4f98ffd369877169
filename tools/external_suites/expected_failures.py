"""Exceptions: the tests that do not pass, by name and with a reason, held against what became of them."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from external_suites.outcomes import Outcome

TABLE = Path(__file__).with_name("expected_failures.toml")


@dataclass(frozen=True, slots=True)
class Entry:
    """Tests that do not pass for one reason.

    Attributes:
        suite: with which the suite's name begins.
        reason: why that is as it should be.
        says: what each of them says as it fails, so that it is seen when one fails of something else.
        tests: their names; one without brackets stands for all parameters of a test.
    """

    suite: str
    reason: str
    says: str
    tests: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse an entry that says less than it has to."""
        if not (self.suite and self.reason and self.says and self.tests):
            raise ValueError(f"an exception needs suite, reason, says and tests, got {self}")


def read_entries(table: Path = TABLE) -> list[Entry]:
    """Read the table. Raises ValueError or TypeError where it is not one."""
    told = tomllib.loads(table.read_text(encoding="utf-8"))
    return [Entry(**{**each, "tests": tuple(each["tests"])}) for each in told["exception"]]


def compare(outcomes: Mapping[str, Outcome], entries: Sequence[Entry]) -> list[str]:
    """Return a sentence for everything that is not as the entries of a suite have it."""
    listed = _listed(outcomes, entries)
    return [
        *(f"{name} does not pass and is not listed: {outcome.says}"
          for name, outcome in outcomes.items() if not outcome.passed and name not in listed),
        *(f"{name} passes and is listed" for name in listed if outcomes[name].passed),
        *(f"{name} fails, but does not say {entry.says!r}: {outcomes[name].says}"
          for name, entry in listed.items() if not outcomes[name].passed and entry.says not in outcomes[name].says),
        *_lost(outcomes, entries),
    ]  # fmt: skip


def tell(name: str, outcomes: Mapping[str, Outcome], entries: Sequence[Entry]) -> Iterator[str]:
    """Yield lines that say how a suite went, with every reason."""
    passed = sum(outcome.passed for outcome in outcomes.values())
    listed = _listed(outcomes, entries)
    yield f"{name}: {len(outcomes)} ran, {passed} passed, {len(listed)} are listed"
    for entry in entries:
        yield f"  {sum(each is entry for each in listed.values())} {entry.reason}"


def _listed(outcomes: Mapping[str, Outcome], entries: Sequence[Entry]) -> dict[str, Entry]:
    """Return test -> the entry that speaks of it, of those tests that there are."""
    by_name = {name: entry for entry in entries for name in entry.tests}
    found = {name: by_name.get(name) or by_name.get(name.partition("[")[0]) for name in outcomes}
    return {name: entry for name, entry in found.items() if entry is not None}


def _lost(outcomes: Mapping[str, Outcome], entries: Sequence[Entry]) -> Iterator[str]:
    """Yield what is wrong with names: those that no test has, and those that stand there twice."""
    there = {*outcomes, *(name.partition("[")[0] for name in outcomes)}
    seen: set[str] = set()
    for name in (name for entry in entries for name in entry.tests):
        if name not in there:
            yield f"{name} is listed, and there is no such test"
        if name in seen:
            yield f"{name} is listed twice"
        seen.add(name)

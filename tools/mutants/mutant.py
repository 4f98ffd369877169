"""Mutant, read_mutants: the faults of mutants.toml, each with the tests that must see it."""

import importlib.util
import tomllib
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).with_name("mutants.toml")

NATIVE_SUFFIXES = (".cpp", ".h")
"""Sources that have effect only in a library compiled from them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One fault.

    Attributes:
        id: its name on the command line.
        fault: what goes wrong, in one line.
        file: the source file, relative to the root of the project.
        old: text that occurs exactly once in the file.
        new: what stands in its place.
        tests: files and folders of the tests that must see the fault, relative to the root.
        keyword: a pytest expression (-k) that selects among these tests; "" for all of them.
    """

    id: str
    fault: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    keyword: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError if a field is empty, or if the new text is the old one."""
        if not (self.id and self.fault and self.file and self.old and self.tests):
            raise ValueError(f"a mutant needs id, fault, file, old and tests, got {self}")
        if self.old == self.new:
            raise ValueError(f"mutant {self.id} changes nothing: its new text is the old one")

    @property
    def is_native(self) -> bool:
        """Whether the native library must be compiled again."""
        return self.file.endswith(NATIVE_SUFFIXES)

    @property
    def pytest_args(self) -> tuple[str, ...]:
        """The arguments that select the tests."""
        return (*self.tests, "-k", self.keyword) if self.keyword else self.tests

    def apply(self, root: Path) -> None:
        """Write the fault into the tree at `root`. Raises ValueError unless the old text occurs exactly once."""
        path = root / self.file
        source = path.read_text(encoding="utf-8")
        if (count := source.count(self.old)) != 1:
            raise ValueError(f"the old text of mutant {self.id} occurs {count} times in {self.file}, expected once")
        path.write_text(source.replace(self.old, self.new), encoding="utf-8")
        # A compiled file counts as current where the source has its size and its time in whole seconds.
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def read_mutants(table: Path = TABLE) -> list[Mutant]:
    """Read the TOML table. Raises ValueError or TypeError for a malformed one, and for two mutants of one id."""
    entries = tomllib.loads(table.read_text(encoding="utf-8"))["mutant"]
    mutants = [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]
    ids = [mutant.id for mutant in mutants]
    if repeated := sorted({each for each in ids if ids.count(each) > 1}):
        raise ValueError(f"{table.name} has two mutants of one id: {', '.join(repeated)}")
    return mutants

"""Outcomes: a suite runs in a pytest of its own, and what became of each test is read from its JUnit file."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

LONGEST = 1800
"""Seconds that a suite may take."""


@dataclass(frozen=True, slots=True)
class Suite:
    """One suite.

    Attributes:
        name: what people call it, with its version.
        folder: where pytest runs.
        words: of pytest's command line: files and options.
        environ: what the suite is told.
        prefix: with which the names of all its tests begin; it is left out of them.
    """

    name: str
    folder: Path
    words: Sequence[str]
    environ: Mapping[str, str]
    prefix: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a test: whether it passed, and what it said where it did not (a skipped one says why)."""

    passed: bool
    says: str = ""


def run(suite: Suite, folder: Path) -> dict[str, Outcome]:
    """Run a suite; its output and its JUnit file stay in a folder. Raises RuntimeError where nothing ran."""
    stem = folder / suite.name.replace(" ", "-")
    results, output = stem.with_name(stem.name + ".xml"), stem.with_name(stem.name + ".log")
    results.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", *suite.words, "--tb", "short", "--junit-xml", str(results)]
    with output.open("wb") as out:
        subprocess.run(
            command, cwd=suite.folder, env={**os.environ, **suite.environ}, stdin=subprocess.DEVNULL, stdout=out,
            stderr=subprocess.STDOUT, timeout=LONGEST, check=False,
        )  # fmt: skip
    found = read(results, suite.prefix) if results.exists() else {}
    if not found:
        raise RuntimeError(f"no test of {suite.name} ran:\n{output.read_text(encoding='utf-8', errors='replace')}")
    return found


def read(results: Path, prefix: str) -> dict[str, Outcome]:
    """Return test -> outcome of a JUnit file; an error around a test counts as a failure of it."""
    found: dict[str, Outcome] = {}
    for case in ElementTree.parse(results).iter("testcase"):
        name = f"{case.get('classname', '')}.{case.get('name', '')}".removeprefix(prefix)
        bad = [child for child in case if child.tag in ("failure", "error", "skipped")]
        said = " ".join(f"{child.tag}: {child.get('message', '')}" for child in bad)
        earlier = found.get(name, Outcome(passed=True))
        found[name] = Outcome(earlier.passed and not bad, " ".join(filter(None, [earlier.says, said])))
    return found

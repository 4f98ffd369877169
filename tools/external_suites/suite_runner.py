"""Suite, Outcome: run a suite in a process of its own and read each test's outcome from the JUnit file."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

SUITE_TIMEOUT_SECONDS = 1800
"""Seconds that one suite may run."""


@dataclass(frozen=True, slots=True)
class Suite:
    """One suite and how pytest or Node's test runner runs it.

    Attributes:
        name: the suite's name with its version.
        folder: the working directory.
        args: command-line arguments of the test runner: files and options.
        environ: environment variables that are set for the suite.
        prefix: the beginning that all test names share; it is removed from them.
        python: the interpreter of the environment with pytest and the suite's packages; None for Node's test runner.
    """

    name: str
    folder: Path
    args: Sequence[str]
    environ: Mapping[str, str]
    prefix: str
    python: Path | None = Path(sys.executable)

    def command(self, results: Path) -> list[str]:
        """Return the command that runs the suite and writes a JUnit file."""
        if self.python is None:
            reporters = ["--test-reporter", "junit", "--test-reporter-destination", str(results)]
            return ["node", "--test", *reporters, *self.args]
        return [str(self.python), "-m", "pytest", *self.args, "--tb", "short", "--junit-xml", str(results)]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a test passed, and the message of its failure, error or skip."""

    passed: bool
    message: str = ""


def run_suite(suite: Suite, folder: Path) -> dict[str, Outcome]:
    """Run a suite and write its output and its JUnit file into a folder.

    Returns test name -> outcome. Raises RuntimeError if no test ran.
    """
    stem = folder / suite.name.replace(" ", "-")
    results, output = stem.with_name(stem.name + ".xml"), stem.with_name(stem.name + ".log")
    results.unlink(missing_ok=True)
    with output.open("wb") as out:
        subprocess.run(
            suite.command(results), cwd=suite.folder, env={**os.environ, **suite.environ},
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, timeout=SUITE_TIMEOUT_SECONDS, check=False,
        )  # fmt: skip
    outcomes = read_junit(results, suite.prefix) if results.exists() else {}
    if not outcomes:
        raise RuntimeError(f"no test of {suite.name} ran:\n{output.read_text(encoding='utf-8', errors='replace')}")
    return outcomes


def read_junit(results: Path, prefix: str) -> dict[str, Outcome]:
    """Return test name -> outcome of a JUnit file; an error in a fixture counts as a failure of the test."""
    outcomes: dict[str, Outcome] = {}
    for case in ElementTree.parse(results).iter("testcase"):
        name = f"{case.get('classname', '')}.{case.get('name', '')}".removeprefix(prefix)
        problems = [child for child in case if child.tag in ("failure", "error", "skipped")]
        message = " ".join(f"{child.tag}: {child.get('message', '')}" for child in problems)
        earlier = outcomes.get(name, Outcome(passed=True))
        outcomes[name] = Outcome(earlier.passed and not problems, " ".join(filter(None, [earlier.message, message])))
    return outcomes

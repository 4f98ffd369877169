"""Run every external suite against one server, and report the outcomes that differ from expected_failures.toml.

python -m external_suites build/contract
"""

import argparse
import os
import sys
from importlib.metadata import version
from pathlib import Path

from external_suites.expected_failures import ExpectedFailure, find_deviations, read_expected_failures, summary_lines
from external_suites.fetch_sdist import fetch_source
from external_suites.server_process import run_server
from external_suites.suite_runner import Suite, run_suite

ROOT = Path(__file__).parents[2]
LANGCHAIN_TESTS = ROOT / "tests" / "contract" / "suites"
OPENAI_TESTS = ("chat", "test_completions.py", "test_models.py")
"""The part of openai-python's suite that tests the routes of a text generation server."""

DEMO_MODEL = "chairlift:demo"
MODEL_NAMES = (DEMO_MODEL, "chairlift:again", "gpt-6-astra", "gpt-3.5-turbo-instruct")
"""Served names of the demo model: its own name, a second one, and the names in openai-python's suite."""


def make_suites(folder: Path, url: str) -> list[Suite]:
    """Return all suites for a server's URL; the source of openai-python is downloaded into a folder."""
    environ = {"CHAIRLIFT_SUITE_URL": url, "CHAIRLIFT_SUITE_MODEL": DEMO_MODEL, "CHAIRLIFT_SUITE_OTHER": MODEL_NAMES[1]}
    scope = ("asyncio_default_fixture_loop_scope=session", "asyncio_default_test_loop_scope=session")
    loop = ["--override-ini", "asyncio_mode=auto", *(word for each in scope for word in ("--override-ini", each))]
    openai = version("openai")
    source = fetch_source("openai", openai, folder)
    return [
        Suite(
            f"openai-python {openai}", source, [*(f"tests/api_resources/{name}" for name in OPENAI_TESTS), "-n", "0"],
            {"TEST_API_BASE_URL": url}, "tests.api_resources.",
        ),
        Suite(
            f"langchain-tests {version('langchain-tests')}", ROOT,
            [str(LANGCHAIN_TESTS / "langchain_cases.py"), "-n", "0", "--record-mode", "once", *loop], environ,
            "tests.contract.suites.langchain_cases.",
        ),
        Suite(
            "LangChain tests for the demo model", ROOT,
            [str(LANGCHAIN_TESTS / "langchain_reach.py"), "-n", "0", *loop], environ,
            "tests.contract.suites.langchain_reach.",
        ),
    ]  # fmt: skip


def report(suite: Suite, expected: list[ExpectedFailure], folder: Path) -> list[str]:
    """Run a suite, print a summary, and return the deviations from the expected failures."""
    outcomes = run_suite(suite, folder)
    of_suite = [entry for entry in expected if suite.name.startswith(entry.suite)]
    deviations = find_deviations(outcomes, of_suite)
    lines = [*summary_lines(suite.name, outcomes, of_suite), *(f"  UNEXPECTED: {each}" for each in deviations)]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
    return deviations


def main() -> None:
    """Run all suites. Exits with status 1 and a message if an outcome is unexpected."""
    parser = argparse.ArgumentParser(prog="python -m external_suites", description=__doc__)
    parser.add_argument("folder", type=Path, help="where sources are unpacked and results are written")
    folder: Path = parser.parse_args().folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    expected = read_expected_failures()
    with run_server(MODEL_NAMES, folder / "server.log") as url:
        deviations = [each for suite in make_suites(folder, url + "/v1") for each in report(suite, expected, folder)]
    if deviations:
        sys.exit(f"{len(deviations)} outcomes differ from expected_failures.toml")


if __name__ == "__main__":
    main()

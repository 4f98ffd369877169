"""Run the suites one after the other, and say what passed, what did not, and why that is as it should be.

python -m external_suites build/contract
"""

import argparse
import os
import sys
from importlib.metadata import version
from pathlib import Path

from external_suites.expected_failures import Entry, compare, read_entries, tell
from external_suites.fetch import unpacked
from external_suites.outcomes import Suite, run
from external_suites.server_fixture import serving

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "contract" / "suites"
GENERATED = ("chat", "test_completions.py", "test_models.py")
"""What there is of openai-python's suite that concerns the routes of a server for text."""

DEMO = "chairlift:demo"
NAMES = (DEMO, "chairlift:again", "gpt-6-astra", "gpt-3.5-turbo-instruct")
"""Names that the demo model answers to: its own, a second one, and those that openai-python's suite asks for."""


def suites(folder: Path, url: str) -> list[Suite]:
    """Return the suites; what openai-python's needs is fetched into a folder."""
    environ = {"CHAIRLIFT_SUITE_URL": url, "CHAIRLIFT_SUITE_MODEL": DEMO, "CHAIRLIFT_SUITE_OTHER": NAMES[1]}
    scope = ("asyncio_default_fixture_loop_scope=session", "asyncio_default_test_loop_scope=session")
    loop = ["--override-ini", "asyncio_mode=auto", *(word for each in scope for word in ("--override-ini", each))]
    openai = version("openai")
    source = unpacked("openai", openai, folder)
    return [
        Suite(
            f"openai-python {openai}", source, [*(f"tests/api_resources/{name}" for name in GENERATED), "-n", "0"],
            {"TEST_API_BASE_URL": url}, "tests.api_resources.",
        ),
        Suite(
            f"langchain-tests {version('langchain-tests')}", ROOT,
            [str(CASES / "langchain_cases.py"), "-n", "0", "--record-mode", "once", *loop], environ,
            "tests.contract.suites.langchain_cases.",
        ),
        Suite(
            "what the demo model can do of these", ROOT, [str(CASES / "langchain_reach.py"), "-n", "0", *loop], environ,
            "tests.contract.suites.langchain_reach.",
        ),
    ]  # fmt: skip


def report(suite: Suite, entries: list[Entry], folder: Path) -> list[str]:
    """Run a suite, say how it went, and return what is not as it should be."""
    outcomes = run(suite, folder)
    mine = [entry for entry in entries if suite.name.startswith(entry.suite)]
    faults = compare(outcomes, mine)
    sys.stdout.write("\n".join([*tell(suite.name, outcomes, mine), *(f"  WRONG: {fault}" for fault in faults)]) + "\n")
    sys.stdout.flush()
    return faults


def main() -> None:
    """Run all of them."""
    parser = argparse.ArgumentParser(prog="python -m external_suites", description=__doc__)
    parser.add_argument("folder", type=Path, help="where sources are unpacked and results are written")
    folder: Path = parser.parse_args().folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    entries = read_entries()
    with serving(NAMES, folder / "server.log") as url:
        faults = [fault for suite in suites(folder, url + "/v1") for fault in report(suite, entries, folder)]
    if faults:
        sys.exit(f"{len(faults)} tests are not as expected_failures.toml has them")


if __name__ == "__main__":
    main()

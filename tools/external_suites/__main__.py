"""Run every external suite against real servers and a router, and report outcomes that expected_failures.toml lacks.

python -m external_suites build/contract
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from itertools import chain
from pathlib import Path

from external_suites.client_environment import find_missing_node, install_node_modules, make_python
from external_suites.expected_failures import ExpectedFailure, find_deviations, read_expected_failures, summary_lines
from external_suites.fetch_sdist import fetch_source
from external_suites.suite_runner import Suite, run_suite
from external_suites.suite_servers import demo_command, router_command, run_server, scripted_command

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "contract" / "suites"
CLIENT_TESTS = ROOT / "tests" / "contract" / "clients"
CLIENT_PINS = ROOT / "constraints" / "clients.txt"
CLIENTS = {
    "openai-agents": ("agents_cases.py", "agents_responses_cases.py"), "instructor": ("instructor_cases.py",),
    "litellm": ("litellm_cases.py",), "lm_eval": ("lm_eval_cases.py",),
}  # fmt: skip
"""Python package -> files with its tests."""

NODE_CLIENTS = {
    "openai": ("openai.test.mjs", "openai_responses.test.mjs"),
    "ai": ("vercel_ai.test.mjs", "vercel_responses.test.mjs"),
}  # fmt: skip
"""npm package -> files with its tests."""

AGENTS = {
    "@anthropic-ai/claude-code": "claude-code", "@openai/codex": "codex", "opencode-ai": "opencode",
    "@qwen-code/qwen-code": "qwen-code",
}  # fmt: skip
"""npm package of an agent -> its name in agent_cases.py."""

OPENAI_TESTS = (
    "chat", "test_completions.py", "test_models.py", "test_embeddings.py", "test_responses.py", "responses",
)  # fmt: skip
"""The part of openai-python's suite that tests the routes of a text generation server."""

DEMO_MODEL = "chairlift:demo"
MODEL_NAMES = (DEMO_MODEL, "chairlift:again", "gpt-6-astra", "gpt-3.5-turbo-instruct", "text-embedding-3-small")
"""Served names of the demo model: its own name, a second one, and the names in openai-python's suite."""

THROUGH_ROUTER = " through a router"
"""End of the names of suites that run against routers, each in front of two equal servers."""

SCOPE = ("asyncio_default_fixture_loop_scope=session", "asyncio_default_test_loop_scope=session")
LOOP = ["--override-ini", "asyncio_mode=auto", *(word for each in SCOPE for word in ("--override-ini", each))]
"""pytest options: one event loop for all tests."""


def make_suites(folder: Path) -> Iterator[Suite]:
    """Yield the suites that need no server or start their own."""
    jsonschema = version("jsonschema")
    yield Suite(
        f"JSON Schema Test Suite of jsonschema {jsonschema}", ROOT, [str(CASES / "json_schema_cases.py"), "-n", "0"],
        {"CHAIRLIFT_SUITE_FOLDER": str(fetch_source("jsonschema", jsonschema, folder, "json/tests"))},
        "tests.contract.suites.json_schema_cases.",
    )  # fmt: skip
    yield Suite(
        f"schemathesis {version('schemathesis')}", ROOT, ["tests/system/test_schemathesis.py", "-n", "0"],
        {"CHAIRLIFT_FULL": "1"}, "tests.system.test_schemathesis.",
    )  # fmt: skip


def make_server_suites(folder: Path, url: str, scripted_url: str, suffix: str = "") -> Iterator[Suite]:
    """Yield the suites for the URLs of the two servers; what a suite needs is installed into a folder before it.

    Each name ends with `suffix`. Suites for Node are left out, with a message, if Node is not installed.
    """
    environ = {
        "CHAIRLIFT_SUITE_URL": url, "CHAIRLIFT_SUITE_MODEL": DEMO_MODEL, "CHAIRLIFT_SUITE_OTHER": MODEL_NAMES[1],
        "CHAIRLIFT_SUITE_SCRIPTED_URL": scripted_url, "CHAIRLIFT_SUITE_TOKENIZER": str(ROOT / "src/chairlift/demo"),
        "HF_HOME": str(folder / "huggingface"), "PYTHONPATH": "",
    }  # fmt: skip
    openai = version("openai")
    yield Suite(
        f"openai-python {openai}{suffix}", fetch_source("openai", openai, folder),
        [*(f"tests/api_resources/{name}" for name in OPENAI_TESTS), "-n", "0", "-p", "openai_values"],
        {"TEST_API_BASE_URL": url, "CHAIRLIFT_SUITE_MODEL": DEMO_MODEL, "PYTHONPATH": str(CASES)},
        "tests.api_resources.",
    )  # fmt: skip
    yield Suite(
        f"langchain-tests {version('langchain-tests')}{suffix}", ROOT,
        [str(CASES / "langchain_cases.py"), "-n", "0", "--record-mode", "once", *LOOP], environ,
        "tests.contract.suites.langchain_cases.",
    )  # fmt: skip
    yield Suite(
        f"LangChain tests for the demo model{suffix}", ROOT,
        [str(CASES / "langchain_reach.py"), "-n", "0", *LOOP], environ,
        "tests.contract.suites.langchain_reach.",
    )  # fmt: skip
    yield from _make_client_suites(folder, environ, suffix)
    yield from _make_node_suites(folder / "node", environ, suffix)
    yield from _make_agent_suites(folder / "agents", environ, suffix)


def _make_client_suites(folder: Path, environ: dict[str, str], suffix: str) -> Iterator[Suite]:
    """Yield the suites of Python clients, which run in an environment of their own."""
    python = make_python(CLIENT_PINS, folder / "clients")
    pins = dict(line.split("==") for line in CLIENT_PINS.read_text(encoding="utf-8").splitlines() if "==" in line)
    options = ["--confcutdir", str(CLIENT_TESTS), "-n", "0", *LOOP]
    for name, files in CLIENTS.items():
        args = [*(str(CLIENT_TESTS / file) for file in files), *options]
        yield Suite(f"{name} {pins[name]}{suffix}", ROOT, args, environ, "tests.contract.clients.", python)


def _make_node_suites(folder: Path, environ: dict[str, str], suffix: str) -> Iterator[Suite]:
    """Yield the suites of clients for Node, or none with a message that names what is missing."""
    if (missing := find_missing_node()) is not None:
        _print(f"Node clients ({', '.join(NODE_CLIENTS)}): SKIPPED, {missing}")
        return
    install_node_modules(CLIENT_TESTS / "node", folder)
    packages = json.loads((folder / "package.json").read_text(encoding="utf-8"))["dependencies"]
    for name, files in NODE_CLIENTS.items():
        yield Suite(f"{name} for Node {packages[name]}{suffix}", folder, files, environ, "test.", None)


def _make_agent_suites(folder: Path, environ: dict[str, str], suffix: str) -> Iterator[Suite]:
    """Yield the suites that run agents themselves, or none with a message that names what is missing."""
    if (missing := find_missing_node()) is not None:
        _print(f"Agents ({', '.join(AGENTS.values())}): SKIPPED, {missing}")
        return
    install_node_modules(CLIENT_TESTS / "agents", folder)
    packages = json.loads((folder / "package.json").read_text(encoding="utf-8"))["dependencies"]
    environ = {**environ, "CHAIRLIFT_SUITE_PROGRAMS": str(folder / "node_modules" / ".bin")}
    for package, name in AGENTS.items():
        args = [str(CASES / "agent_cases.py"), "-n", "0", "-k", name]
        yield Suite(f"{name} {packages[package]}{suffix}", ROOT, args, environ, "tests.contract.suites.agent_cases.")


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def report(suite: Suite, expected: list[ExpectedFailure], folder: Path) -> list[str]:
    """Run a suite, print a summary, and return the deviations from the expected failures."""
    start = time.monotonic()
    outcomes = run_suite(suite, folder)
    of_suite = [entry for entry in expected if suite.name.startswith(entry.suite)]
    deviations = find_deviations(outcomes, of_suite)
    lines = [*summary_lines(suite.name, outcomes, of_suite), *(f"  UNEXPECTED: {each}" for each in deviations)]
    _print("\n".join([f"{lines[0]}, {time.monotonic() - start:.0f} s", *lines[1:]]))
    return deviations


def main() -> None:
    """Run all suites. Exits with status 1 and a message if an outcome is unexpected."""
    parser = argparse.ArgumentParser(prog="python -m external_suites", description=__doc__)
    parser.add_argument("folder", type=Path, help="where sources are unpacked and results are written")
    folder: Path = parser.parse_args().folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    expected = read_expected_failures()
    demo, scripted = demo_command(MODEL_NAMES), scripted_command()
    with (
        run_server(demo, folder / "server.log") as url,
        run_server(demo, folder / "server-2.log") as second_url,
        run_server(router_command(url, second_url), folder / "router.log") as routed_url,
        run_server(scripted, folder / "scripted.log") as scripted_url,
        run_server(scripted, folder / "scripted-2.log") as second_scripted,
        run_server(router_command(scripted_url, second_scripted), folder / "scripted-router.log") as routed_scripted,
    ):
        suites = chain(
            make_server_suites(folder, url + "/v1", scripted_url + "/v1"),
            make_server_suites(folder, routed_url + "/v1", routed_scripted + "/v1", THROUGH_ROUTER),
            make_suites(folder),
        )
        deviations = [each for suite in suites for each in report(suite, expected, folder)]
    if deviations:
        sys.exit(f"{len(deviations)} outcomes differ from expected_failures.toml")


if __name__ == "__main__":
    main()

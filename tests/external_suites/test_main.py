"""The command: each suite is run, and an outcome that is not expected is reported with the test's name."""

import sys
from itertools import chain
from pathlib import Path

import pytest

from external_suites import __main__ as command
from external_suites.expected_failures import ExpectedFailure
from external_suites.suite_runner import Outcome, Suite

SUITE = Suite("some suite 1.0", Path(), [], {}, "")


def test_deviations_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    outcomes = {"a": Outcome(passed=True), "b": Outcome(passed=False, message="500")}
    monkeypatch.setattr(command, "run_suite", lambda suite, folder: outcomes)
    other_suite = ExpectedFailure("other suite", "not here", "x", ("b",))
    assert command.report(SUITE, [other_suite], tmp_path) == ["b does not pass and is not listed: 500"]
    written = capsys.readouterr().out.splitlines()
    assert written == ["some suite 1.0: 2 ran, 1 passed, 0 are listed, 0 s",
                       "  UNEXPECTED: b does not pass and is not listed: 500"]  # fmt: skip
    assert command.report(SUITE, [ExpectedFailure("some suite", "why", "500", ("b",))], tmp_path) == []


def test_the_tests_of_all_clients_are_there() -> None:
    assert {path.name for path in command.CLIENT_TESTS.glob("*_cases.py")} == set(chain(*command.CLIENTS.values()))
    node = command.CLIENT_TESTS / "node"
    assert {path.name for path in node.glob("*.test.mjs")} == set(chain(*command.NODE_CLIENTS.values()))
    cases = {path.name for path in command.CASES.glob("*.py")}
    assert cases == {
        "agent_cases.py",
        "json_schema_cases.py",
        "langchain_cases.py",
        "langchain_reach.py",
        "openai_values.py",
    }


@pytest.mark.parametrize("deviations", [[], ["a passes and is listed"]])
def test_the_exit_code_tells_whether_all_outcomes_are_expected(
    deviations: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class FakeServer:
        def __init__(self, log: Path) -> None:
            self.url = f"http://{log.stem}"

        def __enter__(self) -> str:
            return self.url

        def __exit__(self, *error: object) -> None:
            return None

    runs: list[tuple[str, ...]] = []
    commands: list[list[str]] = []
    monkeypatch.setattr(command, "run_server", lambda words, log: commands.append(words) or FakeServer(log))
    monkeypatch.setattr(command, "make_server_suites", lambda folder, *urls: runs.append(urls) or [])
    monkeypatch.setattr(command, "make_suites", lambda folder: [SUITE])
    monkeypatch.setattr(command, "report", lambda suite, expected, folder: deviations)
    monkeypatch.setattr(sys, "argv", ["external_suites", str(tmp_path / "build")])
    if deviations:
        with pytest.raises(SystemExit, match=r"1 outcomes differ from expected_failures\.toml"):
            command.main()
    else:
        command.main()
    assert runs == [
        ("http://server/v1", "http://scripted/v1"),
        ("http://router/v1", "http://scripted-router/v1", " through a router"),
    ]  # fmt: skip
    assert [words[-4:] for words in commands if "router" in words] == [
        ["--replica", "http://server", "--replica", "http://server-2"],
        ["--replica", "http://scripted", "--replica", "http://scripted-2"],
    ]
    assert (tmp_path / "build").is_dir()


def test_every_suite_is_made_in_its_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    (tmp_path / "agents").mkdir()
    for name in ("node", "agents"):
        (tmp_path / name / "package.json").write_bytes((command.CLIENT_TESTS / name / "package.json").read_bytes())
    versions = {"openai": "1", "langchain-tests": "2", "schemathesis": "3", "jsonschema": "4"}
    monkeypatch.setattr(command, "version", versions.__getitem__)
    monkeypatch.setattr(command, "fetch_source", lambda name, version, folder, tests="tests": folder / name)
    monkeypatch.setattr(command, "make_python", lambda pins, folder: folder / "bin" / "python")
    monkeypatch.setattr(command, "install_node_modules", lambda source, folder: None)
    monkeypatch.setattr(command, "find_missing_node", lambda: None)
    suites = list(command.make_server_suites(tmp_path, "http://a/v1", "http://b/v1", " through a router"))
    assert [suite.name.split()[0] for suite in suites] == [
        "openai-python", "langchain-tests", "LangChain", "openai-agents", "instructor", "litellm", "lm_eval", "openai",
        "ai", "claude-code", "codex", "opencode", "qwen-code",
    ]  # fmt: skip
    assert all(suite.name.endswith(" through a router") for suite in suites)
    assert [suite.python == tmp_path / "clients" / "bin" / "python" for suite in suites[3:7]] == [True] * 4
    assert [suite.python for suite in suites[7:9]] == [None, None]
    programs = str(tmp_path / "agents" / "node_modules" / ".bin")
    assert [suite.environ["CHAIRLIFT_SUITE_PROGRAMS"] for suite in suites[9:]] == [programs] * 4
    assert all(suite.environ["CHAIRLIFT_SUITE_SCRIPTED_URL"] == "http://b/v1" for suite in suites[1:])
    others = list(command.make_suites(tmp_path))
    assert [suite.name.split()[0] for suite in others] == ["JSON", "schemathesis"]
    assert others[0].environ["CHAIRLIFT_SUITE_FOLDER"] == str(tmp_path / "jsonschema")


def test_a_missing_node_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert list(command._make_node_suites(tmp_path, {}, "")) == []
    assert capsys.readouterr().out == "Node clients (openai, ai): SKIPPED, node and npm not found in PATH\n"
    assert list(command._make_agent_suites(tmp_path, {}, "")) == []
    assert capsys.readouterr().out == (
        "Agents (claude-code, codex, opencode, qwen-code): SKIPPED, node and npm not found in PATH\n"
    )

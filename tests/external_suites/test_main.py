"""The command: each suite is run, and an outcome that is not expected is reported with the test's name."""

import sys
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
    assert written == ["some suite 1.0: 2 ran, 1 passed, 0 are listed",
                       "  UNEXPECTED: b does not pass and is not listed: 500"]  # fmt: skip
    assert command.report(SUITE, [ExpectedFailure("some suite", "why", "500", ("b",))], tmp_path) == []


def test_the_cases_of_langchain_are_there() -> None:
    assert {path.name for path in command.LANGCHAIN_TESTS.glob("*.py")} == {"langchain_cases.py", "langchain_reach.py"}


@pytest.mark.parametrize("deviations", [[], ["a passes and is listed"]])
def test_the_exit_code_tells_whether_all_outcomes_are_expected(
    deviations: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class FakeServer:
        def __enter__(self) -> str:
            return "http://x"

        def __exit__(self, *error: object) -> None:
            return None

    urls: list[str] = []
    monkeypatch.setattr(command, "run_server", lambda model_names, log: FakeServer())
    monkeypatch.setattr(command, "make_suites", lambda folder, url: urls.append(url) or [SUITE])
    monkeypatch.setattr(command, "report", lambda suite, expected, folder: deviations)
    monkeypatch.setattr(sys, "argv", ["external_suites", str(tmp_path / "build")])
    if deviations:
        with pytest.raises(SystemExit, match=r"1 outcomes differ from expected_failures\.toml"):
            command.main()
    else:
        command.main()
    assert urls == ["http://x/v1"] and (tmp_path / "build").is_dir()

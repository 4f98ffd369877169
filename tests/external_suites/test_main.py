"""The suites' command: each is run with what it needs, and a fault in one of them is reported by name."""

import sys
from pathlib import Path

import pytest

from external_suites import __main__ as command
from external_suites.expected_failures import Entry
from external_suites.outcomes import Outcome, Suite

SUITE = Suite("some suite 1.0", Path(), [], {}, "")


def test_faults_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    outcomes = {"a": Outcome(passed=True), "b": Outcome(passed=False, says="500")}
    monkeypatch.setattr(command, "run", lambda suite, folder: outcomes)
    elsewhere = Entry("other suite", "not here", "x", ("b",))
    assert command.report(SUITE, [elsewhere], tmp_path) == ["b does not pass and is not listed: 500"]
    written = capsys.readouterr().out.splitlines()
    assert written == ["some suite 1.0: 2 ran, 1 passed, 0 are listed",
                       "  WRONG: b does not pass and is not listed: 500"]  # fmt: skip
    assert command.report(SUITE, [Entry("some suite", "why", "500", ("b",))], tmp_path) == []


def test_the_cases_of_langchain_are_there() -> None:
    assert {path.name for path in command.CASES.glob("*.py")} == {"langchain_cases.py", "langchain_reach.py"}


@pytest.mark.parametrize("faults", [[], ["a passes and is listed"]])
def test_the_exit_code_says_whether_all_is_as_listed(
    faults: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Running:
        def __enter__(self) -> str:
            return "http://x"

        def __exit__(self, *error: object) -> None:
            return None

    asked: list[str] = []
    monkeypatch.setattr(command, "serving", lambda names, log: Running())
    monkeypatch.setattr(command, "suites", lambda folder, url: asked.append(url) or [SUITE])
    monkeypatch.setattr(command, "report", lambda suite, entries, folder: faults)
    monkeypatch.setattr(sys, "argv", ["external_suites", str(tmp_path / "build")])
    if faults:
        with pytest.raises(SystemExit, match=r"1 tests are not as expected_failures\.toml has them"):
            command.main()
    else:
        command.main()
    assert asked == ["http://x/v1"] and (tmp_path / "build").is_dir()

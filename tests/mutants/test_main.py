"""python -m mutants: the exit code, one line for each mutant, and the results as JSON."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mutants import __main__ as command
from mutants.mutant import Mutant
from mutants.mutant_run import MutantResult, Verdict

ENTRY = '[[mutant]]\nid = "{}"\nfault = "f"\nfile = "a.py"\nold = "1"\nnew = "2"\ntests = ["t"]\n'
SURVIVED = MutantResult("b", Verdict.SURVIVED, "every test passes", 3.25, 3.0)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], bool, int]]:
    """The runs of mutants a and b, of which a is killed and b survives."""
    found: list[tuple[list[str], bool, int]] = []

    def scripted(_root: Path, mutants: Sequence[Mutant], *, full: bool, jobs: int) -> Iterator[MutantResult]:
        found.append(([mutant.id for mutant in mutants], full, jobs))
        results = {"a": MutantResult("a", Verdict.KILLED, "t::test_x", 1.25, 2.0), "b": SURVIVED}
        yield from (results[mutant.id] for mutant in mutants)

    monkeypatch.setattr(command, "judge_mutants", scripted)
    return found


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "mutants.toml"
    path.write_text(ENTRY.format("a") + ENTRY.format("b"))
    return path


def test_a_mutant_that_survives_is_reported(
    table: Path, tmp_path: Path, calls: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results.json"
    assert command.main(["--json", str(results), "--jobs", "2", "--full"], table=table) == 1
    assert calls == [(["a", "b"], True, 2)]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:2]] == [
        ["killed", "a", "1.2", "s", "(without", "it", "2.0", "s)", "t::test_x"],
        ["SURVIVED", "b", "3.2", "s", "(without", "it", "3.0", "s)", "every", "test", "passes"],
    ]
    assert lines[2:] == [f"{'':<9} f", "1 killed, 1 SURVIVED, 0 error of 2 mutants"]
    report = json.loads(results.read_text())
    assert report["full"] is True and report["counts"] == {"killed": 1, "SURVIVED": 1, "error": 0}
    assert report["results"][1] == {
        "id": "b", "verdict": "SURVIVED", "reason": "every test passes", "seconds": 3.25, "baseline_seconds": 3.0
    }  # fmt: skip


def test_only_the_named_mutants_run(table: Path, calls: list[object]) -> None:
    assert command.main(["--only", "a"], table=table) == 0
    assert calls == [(["a"], False, 1)]


def test_an_error_is_no_success(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = MutantResult("a", Verdict.ERROR, "collection fails: t")
    monkeypatch.setattr(command, "judge_mutants", lambda *_, **__: iter([error]))
    assert command.main([], table=table) == 1


def test_an_unknown_mutant_is_named(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--only", "c"], table=table)
    assert "invalid choice: 'c'" in capsys.readouterr().err

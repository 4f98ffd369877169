"""judge_mutants: killed, survived, errors and timeouts in a small project; equal tests share a run without a fault."""

import time
from pathlib import Path

import pytest

from mutants import mutant_run, tree_copy
from mutants.mutant_run import MutantResult, PytestRun, Verdict, judge_mutants, read_verdict, run_pytest
from mutants.tree_copy import copy_tree
from support_mutants import COMPILE_MODULE, make_mutant, make_project
from support_process import has_ended, wait_until

MUTANTS = (
    make_mutant("survives", new="number * 2"),
    make_mutant("seen-by-a-child", old="number // 2", new="number // 3"),
    make_mutant("compiled", file="src/counting/factor.cpp", old="3", new="4"),
    make_mutant("not-compiled", file="src/counting/factor.cpp", old="FACTOR = 3", new="no code"),
    make_mutant("no-such-text", old="3 * number"),
    make_mutant("no-such-file", file="src/counting/pieces.py"),
    make_mutant("no-import", old="def double(", new="def double"),
    make_mutant("baseline-fails", tests=("tests/test_wrong.py",)),
)


@pytest.fixture(autouse=True)
def few_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small project's runs of pytest start fast."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr(tree_copy, "COMPILE_MODULE", COMPILE_MODULE)


@pytest.mark.full
def test_what_became_of_each_mutant(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    results = {each.id: each for each in judge_mutants(project, MUTANTS, full=False, jobs=2)}
    assert list(results) == [mutant.id for mutant in MUTANTS]
    killed = {name: each.reason for name, each in results.items() if each.verdict is Verdict.KILLED}
    assert killed == {
        "seen-by-a-child": "tests/test_parts.py::test_half_in_a_child_without_environment",
        "compiled": "tests/test_parts.py::test_factor",
    }
    assert [name for name, each in results.items() if each.verdict is Verdict.SURVIVED] == ["survives"]
    assert results["survives"].seconds > 0 and results["survives"].baseline_seconds > 0
    errors = {name: each.reason for name, each in results.items() if each.verdict is Verdict.ERROR}
    assert errors["no-import"] == "collection fails: tests/test_parts.py"
    assert errors["baseline-fails"] == "its tests do not pass without the fault: tests/test_wrong.py::test_wrong"
    for name, part in (
        ("not-compiled", "the native library was not compiled"), ("no-such-text", "occurs 0 times"),
        ("no-such-file", "pieces.py"),
    ):  # fmt: skip
        assert part in errors[name]
    assert len(killed) + 1 + len(errors) == len(MUTANTS)


def test_a_run_that_does_not_end_is_killed_with_its_processes(tmp_path: Path) -> None:
    with copy_tree(make_project(tmp_path)) as copy:
        child = "import os, subprocess, time\n\ndef test_child():\n    process = subprocess.Popen(['sleep', '600'])\n"
        child += "    open('pid', 'w').write(str(process.pid))\n    time.sleep(600)\n"
        (copy.root / "tests/test_child.py").write_text(child)
        run = run_pytest(copy, ["tests/test_child.py"], full=False, timeout_seconds=3)
        assert run.exit_code is None and run.seconds < 60
        pid = copy.root / "pid"
        if pid.exists():  # a slow machine may not have come to it
            wait_until(lambda: has_ended(int(pid.read_text())))


@pytest.mark.parametrize(
    ("exit_code", "failure", "verdict", "reason"),
    [
        (0, "", Verdict.SURVIVED, "every test passes"),
        (1, "tests/test_a.py::test_b[x - y]", Verdict.KILLED, "tests/test_a.py::test_b[x - y]"),
        (1, "", Verdict.KILLED, "a test ended pytest"),
        (None, "", Verdict.KILLED, "the tests did not end within 7 s"),
        (-11, "", Verdict.KILLED, "SIGSEGV ended pytest"),
        (2, "tests/test_a.py", Verdict.ERROR, "collection fails: tests/test_a.py"),
        (2, "", Verdict.ERROR, "pytest's exit code is 2: the end"),
        (4, "", Verdict.ERROR, "pytest's exit code is 4: the end"),
    ],
)
def test_the_verdict_follows_from_the_end_of_a_run(
    exit_code: int | None, failure: str, verdict: Verdict, reason: str
) -> None:
    assert read_verdict(PytestRun(exit_code, 7.2, failure, "the end")) == (verdict, reason)


def test_equal_tests_share_a_run_without_a_fault_whose_duration_bounds_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[tuple[tuple[str, ...], bool, float]] = []

    def scripted(_copy: object, args: tuple[str, ...], *, full: bool, timeout_seconds: float) -> PytestRun:
        runs.append((args, full, timeout_seconds))
        return PytestRun(0 if timeout_seconds == mutant_run.BASELINE_TIMEOUT_SECONDS else None, 10.0, "", "")

    monkeypatch.setattr(mutant_run, "run_pytest", scripted)
    mutants = [make_mutant("a"), make_mutant("b"), make_mutant("c", keyword="half")]
    results = list(judge_mutants(make_project(tmp_path), mutants, full=True, jobs=1))
    reason = "the tests did not end within 10 s"
    assert results == [MutantResult(name, Verdict.KILLED, reason, 10.0, 10.0) for name in "abc"]
    plain, half = ("tests/test_parts.py",), ("tests/test_parts.py", "-k", "half")
    assert runs == [(plain, True, 1800), (plain, True, 110), (plain, True, 110), (half, True, 1800), (half, True, 110)]


@pytest.mark.full
def test_a_run_has_one_thread_no_pythonpath_and_all_seeds_if_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    test = "import os\n\ndef test_environment():\n    assert 'PYTHONPATH' not in os.environ\n"
    test += "    assert (os.environ['CHAIRLIFT_FULL'], os.environ['OMP_NUM_THREADS']) == ('1', '1')\n"
    with copy_tree(make_project(tmp_path)) as copy:
        (copy.root / "tests/test_environment.py").write_text(test)
        assert run_pytest(copy, ["tests/test_environment.py"], full=True, timeout_seconds=60).exit_code == 0


@pytest.mark.full
def test_a_stopped_reader_ends_the_runs_that_are_queued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_args: object, **_options: object) -> PytestRun:
        time.sleep(0.05)
        runs.append(1)
        return PytestRun(0, 1.0, "", "")

    runs: list[int] = []
    monkeypatch.setattr(mutant_run, "run_pytest", slow)
    mutants = [make_mutant(f"m{number}") for number in range(50)]
    results = judge_mutants(make_project(tmp_path), mutants, full=False, jobs=1)
    assert next(results).id == "m0"
    results.close()  # type: ignore[attr-defined]
    assert len(runs) < 10

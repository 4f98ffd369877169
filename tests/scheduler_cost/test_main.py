"""`python -m scheduler_cost`: a table, a report and invalid input, with few requests."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler_cost import __main__ as command
from scheduler_cost import scheduler_cost
from scheduler_cost.__main__ import main
from scheduler_cost.scheduler_cost_rig import CostCase


@pytest.fixture
def small_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every case small: few running and few waiting requests."""

    def shrink(cases: Sequence[CostCase]) -> list[CostCase]:
        return [replace(case, running=case.running // 64, waiting=case.waiting // 100) for case in cases]

    monkeypatch.setattr(command, "all_cases", lambda: shrink(scheduler_cost.all_cases()))
    monkeypatch.setattr(command, "flatness_cases", lambda policy: shrink(scheduler_cost.flatness_cases(policy)))


@pytest.mark.full
@pytest.mark.usefixtures("small_cases")
def test_the_costs_of_a_policy_are_printed_and_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    assert main(["fair", "--windows", "3", "--steps", "4", "--json", str(path)]) == 0
    lines = [line.split()[:4] for line in capsys.readouterr().out.splitlines() if line.startswith("fair")]
    assert lines == [["fair", "mixed", "4", "10"], ["fair", "mixed", "16", "10"]] + [
        ["fair", "mixed", "4", str(waiting)] for waiting in (1, 10, 100, 1000)
    ]
    report = json.loads(path.read_text())
    assert report["kind"] == "chairlift scheduler cost" and report["windows"] == 3
    assert [len(case["by_window"]) for case in report["arms"]] == [3, 3]
    assert len(report["flatness"]["policies"]["fair"]) == len(report["flatness"]["waiting"]) == 4
    assert {"commit", "changed_meanwhile", "versions"} <= set(report["environment"])
    assert report["environment"]["hardware"]["cores"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("lifo",), "unknown policy 'lifo'; available are fifo"),
        (("--windows", "0"), "--windows must be at least 1, got 0"),
        (("--steps", "0"), "--steps must be at least 1, got 0"),
    ],
)
def test_invalid_input_is_one_sentence(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert message in capsys.readouterr().err

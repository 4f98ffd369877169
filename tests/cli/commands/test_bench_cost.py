"""`chairlift bench cost`: a table and a report, and what it refuses. (Its measuring is tested with fewer seats.)"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from chairlift.bench.micro import scheduler_cost
from chairlift.bench.micro.scheduler_cost_rig import CostCase
from chairlift.cli.commands import bench_cost
from chairlift.cli.main import main


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every arm with a few seats and a short line."""

    def shrunk(arms: Sequence[CostCase]) -> list[CostCase]:
        return [replace(arm, running=arm.running // 64, waiting=arm.waiting // 100) for arm in arms]

    monkeypatch.setattr(bench_cost, "all_cases", lambda: shrunk(scheduler_cost.all_cases()))
    monkeypatch.setattr(bench_cost, "flatness_cases", lambda policy: shrunk(scheduler_cost.flatness_cases(policy)))


@pytest.mark.usefixtures("small")
def test_the_costs_of_a_policy_are_printed_and_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    assert main(["bench", "cost", "fair", "--windows", "3", "--steps", "4", "--json", str(path)]) == 0
    lines = [line.split()[:4] for line in capsys.readouterr().out.splitlines() if line.startswith("fair")]
    assert lines == [["fair", "mixed", "4", "10"], ["fair", "mixed", "16", "10"]] + [
        ["fair", "mixed", "4", str(waiting)] for waiting in (1, 10, 100, 1000)
    ]
    report = json.loads(path.read_text())
    assert report["kind"] == "chairlift bench cost" and report["windows"] == 3
    assert [len(arm["by_window"]) for arm in report["arms"]] == [3, 3]
    assert len(report["flatness"]["policies"]["fair"]) == len(report["flatness"]["waiting"]) == 4
    assert {"commit", "changed_meanwhile", "versions"} <= set(report["environment"])
    assert report["environment"]["hardware"]["cores"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("lifo",), "unknown policy 'lifo'; there is fifo"),
        (("--windows", "0"), "windows must be at least 1, got 0"),
        (("--steps", "0"), "steps must be at least 1, got 0"),
        (("--json", "/nowhere/x.json"), "there is no folder /nowhere"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert main(["bench", "cost", *words]) == 2
    assert said in capsys.readouterr().err

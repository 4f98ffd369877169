"""`chairlift bench scenarios`: the numbers of some or all of them, printed and written."""

import json
from pathlib import Path

import pytest

from chairlift.cli.main import main


def test_a_scenario_is_printed_and_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "scenarios.json"
    assert main(["bench", "scenarios", "priority", "--json", str(path)]) == 0
    assert "priority · ageing 5 s: broken 0, " in capsys.readouterr().out
    report = json.loads(path.read_text())
    assert report["kind"] == "chairlift bench scenarios" and list(report["scenarios"]) == ["priority"]
    assert report["scenarios"]["priority"]["ageing 5 s"]["broken"] == 0
    assert "commit" in report["environment"] and str(tmp_path) not in json.dumps(report)


def test_a_scenario_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "scenarios", "luck"]) == 2
    assert "unknown scenario 'luck'; there is fair, priority" in capsys.readouterr().err

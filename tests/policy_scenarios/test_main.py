"""`python -m policy_scenarios`: the numbers of scenarios, printed and written."""

import json
from pathlib import Path

import pytest

from policy_scenarios.__main__ import main


@pytest.mark.full
def test_a_scenario_is_printed_and_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "scenarios.json"
    assert main(["priority", "--json", str(path)]) == 0
    assert "priority · ageing 5 s: broken 0, " in capsys.readouterr().out
    report = json.loads(path.read_text())
    assert report["kind"] == "chairlift policy scenarios" and list(report["scenarios"]) == ["priority"]
    assert report["scenarios"]["priority"]["ageing 5 s"]["broken"] == 0
    assert "commit" in report["environment"] and str(tmp_path) not in json.dumps(report)


def test_an_unknown_scenario_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["luck"])
    assert "unknown scenario 'luck'; available are fair, priority" in capsys.readouterr().err

"""cpu_roofline: the report, and its summary against the floors of each turn."""

import json
from pathlib import Path

import pytest

from cpu_roofline.__main__ import main, summary, table


@pytest.mark.full
def test_a_report_is_written_and_read_aloud(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cpu_roofline.__main__.PATIENCE", 0.0)
    assert main([str(model), "--repeat", "1", "--json", str(tmp_path / "report.json")]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["summary"] == summary(report["turns"]) and len(report["turns"]) == 1
    output = capsys.readouterr().err
    for line in table(report["summary"]):
        assert line in output
    assert str(tmp_path) not in json.dumps(report) and str(model.parent) not in json.dumps(report)


def test_each_turn_is_held_against_its_own_floors() -> None:
    turns = []
    for speed in (1.0, 2.0, 4.0):  # the machine's speed varies, the ratios do not
        turns.append({
            "w1": {
                "seconds": 10 / speed, "output_tokens_per_second": 5 * speed, "flops": 6e9,
                "peak_gflops": [speed, 0.5 * speed], "parts": {"head": 1 / speed},
            },
            "single": {"seconds_and_floor": [(2 / speed, 1 / speed), (6 / speed, 3 / speed), (2 / speed, 4 / speed)]},
            "attention": {"seconds_and_floor": [(1.5 / speed, 1 / speed)]},
        })  # fmt: skip
    result = summary(turns)
    assert result["w1_of_compute_floor"] == pytest.approx(0.6) and result["single_over_bandwidth_floor"] == 2.0
    assert result["attention_over_bandwidth_floor"] == 1.5 and result["single_tokens_per_second"] == 1.0
    assert result["w1_parts_seconds"] == {"head": 0.5} and result["peak_gflops"] == 2.0

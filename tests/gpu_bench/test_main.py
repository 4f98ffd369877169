"""gpu_bench: the whole command runs on a CPU with tiny shapes, and its report keeps what each part did."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_bench import __main__ as module
from gpu_bench.__main__ import build_result, default_name, finite, main
from gpu_bench.measurements import Measurements
from gpu_bench.part_budget import PartOutcome

TINY = ("--device", "cpu", "--shapes", "tiny")


def run(folder: Path, *args: str) -> tuple[int, dict[str, Any]]:
    output = folder / "results" / "report.json"
    code = main([*TINY, "--output", str(output), *args])
    return code, json.loads(output.read_text())


def check_schema(report: dict[str, Any]) -> None:
    assert report["kind"] == "chairlift gpu bench" and report["shapes"] == "tiny"
    assert {"schema", "budget_minutes", "environment", "command", "figures", "parts"} <= set(report)
    for part in report["parts"].values():
        assert set(part) == {"status", "seconds", "reason", "result", "trace"}
        assert part["status"] in ("done", "skipped", "failed") and (part["status"] == "done") is (part["reason"] == "")
    assert len(report["figures"]) == 9
    for figure in report["figures"]:
        assert set(figure) == {"figure", "part", "value", "unit", "goal", "comparison", "aim", "is_met"}


@pytest.mark.full
def test_every_part_runs_on_a_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    code, report = run(tmp_path)
    assert code == 0
    check_schema(report)
    parts = report["parts"]
    assert list(parts) == [part.name for part in Measurements(torch.device("cpu"), module.SIZES["tiny"]).parts]
    assert {name for name, part in parts.items() if part["status"] != "done"} <= {"options"}
    for part in ("mixed-8b", "mixed-0.6b"):
        assert parts[part]["result"]["is_complete"]
    assert parts["baseline-8b"]["result"]["transformers"]["is_complete"]
    values = {row["figure"]: row["value"] for row in report["figures"]}
    assert values["8B, decode at batch 64, of the roofline"] is None  # the tiny batches are others
    assert sum(value is not None for value in values.values()) == 7
    assert {row["is_met"] for row in report["figures"]} == {None}
    assert str(tmp_path) not in json.dumps(report)
    output = capsys.readouterr().err
    assert "baseline-8b: done after" in output and "not measured" in output and "written to" in output


def test_only_chosen_parts_run_and_a_part_without_time_is_skipped(tmp_path: Path) -> None:
    code, report = run(tmp_path, "--parts", "prefill-8b,device", "--minutes", "0.2")
    check_schema(report)
    assert code == 0 and list(report["parts"]) == ["device", "prefill-8b"]
    for part in report["parts"].values():
        assert part["status"] == "skipped" and "of 12 s are left" in part["reason"]


def test_an_error_in_a_part_leaves_the_others_and_exits_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Measurements, "measure_decode", fail)
    code, report = run(tmp_path, "--parts", "device,decode-8b,prefill-8b")
    check_schema(report)
    assert code == 1 and [part["status"] for part in report["parts"].values()] == ["done", "failed", "done"]
    assert report["parts"]["decode-8b"]["reason"] == "OutOfMemoryError: CUDA out of memory"
    assert report["parts"]["decode-8b"]["trace"]


def test_the_report_is_written_after_each_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Measurements, "measure_decode", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "--parts", "device,decode-8b")
    report = json.loads((tmp_path / "results" / "report.json").read_text())
    check_schema(report)
    assert list(report["parts"]) == ["device"]


def test_without_a_gpu_the_command_says_so_and_exits_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([]) == 2
    output = capsys.readouterr().err
    assert output.startswith("error: the GPU benchmark needs an NVIDIA GPU, but torch") and output.count("\n") == 1


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--parts", "device,decoding"]) == 2
    assert "unknown parts decoding; available are device, decode-8b" in capsys.readouterr().err


def test_a_file_is_named_after_the_gpu_and_the_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    name = default_name(torch.device("cuda"))
    assert name.startswith("gpu-nvidia-h100-80gb-hbm3-20") and name.endswith(".json")


def test_numbers_that_json_lacks_become_none() -> None:
    nan, infinity = float("nan"), float("inf")
    assert finite({"a": [nan, 1.5, "x"], "b": {"c": infinity}, "d": None}) == {
        "a": [None, 1.5, "x"], "b": {"c": None}, "d": None,
    }  # fmt: skip
    outcome = PartOutcome("baseline-8b", "done", 1.0, "", {"ratio": nan})
    result = build_result([outcome], "full", 8.0)
    json.dumps(result, allow_nan=False)
    assert all(row["value"] is None for row in result["figures"])

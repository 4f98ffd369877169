"""Reports: one layout for every comparison, written as strict JSON, and a printed table."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chairlift.bench.offline.comparison import Arm, ArmRuns
from chairlift.bench.offline.offline_benchmark import measure
from chairlift.bench.offline.run_spec import RunSpec, WorkloadSpec
from chairlift.bench.report import environment, report, report_output
from chairlift.core.file_writes import FileNotWritten
from chairlift.llm.builtin_models import RANDOM

SPEC = RunSpec(
    model=RANDOM,
    options={"num_blocks": 200, "scheduling_policy": "fifo"},
    workload=WorkloadSpec(name="longtail", requests=3, seed=5),
)
SPANS = {"mean", "p50", "p90", "p99"}


@pytest.fixture(scope="module")
def run() -> dict[str, Any]:
    return measure(SPEC)


def arm_runs(run: dict[str, Any], name: str, *speeds: float) -> ArmRuns:
    return ArmRuns(Arm(name=name, command=()), [{**run, "output_tokens_per_second": speed} for speed in speeds])


@pytest.mark.full
def test_a_report_of_one_run_has_every_field_on_top(run: dict[str, Any]) -> None:
    made = report.build_report(SPEC, [arm_runs(run, "chairlift", 7.0)], environment.source(), ["bench", "offline"])
    assert (made["kind"], made["schema"], made["seed"]) == ("chairlift bench offline", 2, 5)
    assert made["output_tokens_per_second"] == 7.0 and made["total_tokens_per_second"] > 0
    for name in ("latency_seconds", "ttft_seconds", "itl_seconds"):
        assert set(made[name]) == SPANS and all(value > 0 for value in made[name].values())
    for name in (
        "kv_cache_usage",
        "kv_cache_waste",
        "peak_running_requests",
        "preemptions",
        "steps",
        "timeline",
        "samples",
        "engine",
    ):
        assert name in made
    assert made["tokens"]["cached"] == 0
    assert made["workload"]["name"] == "longtail" and made["workload"]["requests"] == 3
    assert made["workload"]["tokens"]["output"] == made["tokens"]["output"]
    assert made["model"] == {"name": RANDOM, "shape": None}
    assert made["options"] == {"num_blocks": 200, "scheduling_policy": "fifo"}
    assert {"commit", "dirty", "changed_meanwhile", "versions", "hardware"} == set(made["environment"])
    assert made["environment"]["hardware"]
    assert made["command"] == "chairlift bench offline" and made["ratios"] == []
    assert [each["name"] for each in made["arms"]] == ["chairlift"]


def test_of_several_runs_the_median_one_is_on_top_and_all_are_kept_without_large_fields(run: dict[str, Any]) -> None:
    made = report.build_report(SPEC, [arm_runs(run, "a", 9.0, 7.0, 8.0), arm_runs(run, "b", 4.0, 4.0, 2.0)], {}, [])
    assert made["output_tokens_per_second"] == 8.0
    assert [len(each["runs"]) for each in made["arms"]] == [3, 3]
    assert all("timeline" not in each and "samples" not in each for arm in made["arms"] for each in arm["runs"])
    assert [row["first_over_this.output_tokens_per_second"] for row in made["ratios"]] == [1.0, 2.0]


def test_it_is_written_as_strict_json(run: dict[str, Any], tmp_path: Path) -> None:
    made = report.build_report(SPEC, [arm_runs(run, "chairlift", 7.0)], {}, [])
    report_output.write(str(tmp_path / "out.json"), made)
    assert json.loads((tmp_path / "out.json").read_text()) == json.loads(json.dumps(made))
    with pytest.raises(ValueError, match="not JSON compliant"):
        report_output.write(str(tmp_path / "nan.json"), {"x": float("nan")})
    with pytest.raises(FileNotWritten, match="cannot write"):
        report_output.write(str(tmp_path / "no" / "out.json"), made)


def test_one_run_is_a_few_printed_lines(run: dict[str, Any]) -> None:
    lines = list(report.table(report.build_report(SPEC, [arm_runs(run, "chairlift", 7.0)], {}, [])))
    assert lines[0].startswith("3 of 3 requests in ") and lines[1].startswith("7.0 output tokens/s, ")
    assert [line.split()[0] for line in lines[2:6]] == ["seconds", "latency", "ttft", "itl"]
    assert "preemptions" in lines[6] and len(lines) == 7
    assert "the median of 3 runs" in next(
        report.table(report.build_report(SPEC, [arm_runs(run, "x", 7.0, 8.0, 9.0)], {}, []))
    )


def test_a_comparison_is_a_line_an_arm_with_its_ratios(run: dict[str, Any]) -> None:
    lines = list(
        report.table(report.build_report(SPEC, [arm_runs(run, "ours", 9.0), arm_runs(run, "theirs", 3.0)], {}, []))
    )
    assert lines[1].split()[:2] == ["ours", "9.0"] and lines[1].split()[-3:] == ["1.00", "1.00", "0"]
    assert lines[2].split()[:2] == ["theirs", "3.0"] and lines[2].split()[-3] == "3.00"
    assert lines[3] == "medians of 1; speed and p99: ours over each"


def test_what_is_not_known_is_a_dash(run: dict[str, Any]) -> None:
    nothing = {**run, "latency_seconds": dict.fromkeys(SPANS), "kv_cache_usage": {"mean": None, "peak": None}}
    made = report.build_report(SPEC, [ArmRuns(Arm(name="x", command=()), [nothing])], {}, [])
    assert any(line.split() == ["latency", "-", "-", "-", "-"] for line in report.table(made))


def test_a_report_can_go_into_a_pipe_and_leaves_what_was_said_there_before() -> None:
    code = (
        "from chairlift.bench.report import report_output; print('table', flush=True); "
        "report_output.write('/dev/stdout', {'a': 1})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["table", "{", '"a":', "1", "}"]

"""`chairlift bench simulate`: its table, its report, and invalid input."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from chairlift.bench.fleet_simulation.load.conversations import CONVERSATION_LOADS
from chairlift.bench.simulation.sim_step_model import SMOL135_CPU, read_model
from chairlift.bench.simulation.simulation import SimMachine
from chairlift.bench.simulation.step_model_file import read_step_model
from chairlift.cli.commands.bench import bench_simulate
from chairlift.cli.main import main
from chairlift.cli.settings import settings
from chairlift.engine.config import SchedulerConfig
from support_step_stats import make_stats

SMALL = ("bench", "simulate", "--requests", "12", "--max-running-requests", "4", "--rate", "2")


def run_simulation(tmp_path: Path, *words: str) -> dict[str, Any]:
    """Run a simulation and return its report."""
    path = tmp_path / "report.json"
    assert main([*SMALL, *words, "--json", str(path)]) == 0
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def test_it_runs_without_a_model_or_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report = run_simulation(tmp_path)
    printed = capsys.readouterr()
    assert "12 of 12 requests" in printed.out and "queue wait" in printed.out
    assert "simulated" in printed.err
    assert report["kind"] == "chairlift bench simulate" and report["requests"]["completed"] == 12
    assert report["machine"]["step_times"]["origin"] == SMOL135_CPU.origin
    assert report["engine"]["max_running_requests"] == 4 and report["workload"]["rate"] == 2
    assert {"mean", "p50", "p90", "p99"} <= set(report["latency_seconds"])
    assert report["command"].startswith("chairlift bench simulate") and str(tmp_path) not in json.dumps(report)


def test_an_interrupt_is_one_sentence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for name, words in (("simulate", ()), ("compare_rules", ("--fleet", "2"))):
        monkeypatch.setattr(bench_simulate, name, interrupt)
        assert main([*SMALL, *words]) == 130
        report, error = capsys.readouterr().err.splitlines()
        assert report.startswith("the simulation was interrupted after ") and error == "chairlift: interrupted"
        assert report.endswith(" s; there is no report, and the next run begins anew")


@pytest.mark.full
def test_the_same_seed_gives_the_same_report_byte_for_byte(tmp_path: Path) -> None:
    texts = []
    for _ in range(2):
        run_simulation(tmp_path, "--noise", "0.2", "--seed", "3", "--scheduling-policy", "fair", "--tenants", "a=3,b")
        texts.append((tmp_path / "report.json").read_bytes())
    assert texts[0] == texts[1]
    run_simulation(tmp_path, "--noise", "0.2", "--seed", "4", "--scheduling-policy", "fair", "--tenants", "a=3,b")
    assert (tmp_path / "report.json").read_bytes() != texts[0]


@pytest.mark.full
def test_step_times_of_a_file_are_used(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text('{"step": 2}')
    report = run_simulation(tmp_path, "--step-times", str(path))
    assert report["one_step_seconds"]["p50"] == report["one_step_seconds"]["p99"] == 2.0


@pytest.mark.full
def test_step_times_are_fitted_and_saved(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    steps = [make_stats(number, num_sequences=1 + number % 7, started_ms=100.0 * number) for number in range(30)]
    lines = [
        {**{each.name: getattr(step, each.name) for each in fields(step)}, "collect_started_ms": step.started_ms,
         "collect_ms": 10.0 + 2 * step.num_sequences}
        for step in steps
    ]  # fmt: skip
    run, model = tmp_path / "steps.jsonl", tmp_path / "model.json"
    run.write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = run_simulation(tmp_path, "--fit", str(run), "--save-step-times", str(model))
    assert "fitted to 30 steps; error: median 0.0%" in capsys.readouterr().err
    result = read_model(str(model))
    assert (result.step, result.row) == (pytest.approx(0.010), pytest.approx(0.002)) and result.noise == 0
    assert report["machine"]["step_times"]["row"] == result.row


def test_a_failed_request_sets_the_exit_code(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"prompt_tokens": 4, "output_tokens": 50, "timeout": 0.1}\n')
    assert main(["bench", "simulate", "--workload", str(trace)]) == 1


def test_the_length_auto_is_that_of_the_simulated_cache(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--max-model-len", "auto"]) == 0
    assert main([*SMALL, "--max-model-len", "auto", "--num-blocks", "2"]) == 2
    assert "this model's maximum context length is 33 tokens" in capsys.readouterr().err


@pytest.mark.share(4)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--workload", "nothing"), "unknown --workload 'nothing'"),
        (("--scheduling-policy", "lifo"), "unknown --scheduling-policy 'lifo'"),
        (("--batching-policy", "none"), "unknown --batching-policy 'none'"),
        (("--step-times", "/nowhere.json"), "cannot read /nowhere.json"),
        (("--fit", "/nowhere.json"), "cannot read /nowhere.json"),
        (("--fit", "a", "--step-times", "b"), "cannot be given together"),
        (("--noise", "-1"), "noise of the step model"),
        (("--confirmed-drafts", "-1"), "confirmed_drafts of the step model"),
        (("--json", "/nowhere/x.json"), "there is no folder /nowhere"),
        (("--max-model-len", "20"), "request 0 of the workload"),
        (("--num-blocks", "0"), "--num-blocks must be at least 1, got 0"),
        (("--dtype", "float32"), "unknown option --dtype"),
    ],
)
def test_invalid_input_is_one_sentence(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert main([*SMALL, *words]) == 2
    assert message in capsys.readouterr().err


def test_confirmed_drafts_make_decoding_faster_and_are_kept_for_a_plan(tmp_path: Path) -> None:
    seconds, step_times = [], tmp_path / "steps.json"
    for words in ((), ("--confirmed-drafts", "2", "--save-step-times", str(step_times))):
        assert main([*SMALL, *words, "--json", str(tmp_path / "out.json")]) == 0
        content = json.loads((tmp_path / "out.json").read_text())
        seconds.append(content["latency_seconds"]["mean"])
    assert seconds[1] < 0.8 * seconds[0]
    assert read_step_model(str(step_times)).confirmed_drafts == 2
    assert content["machine"]["step_times"]["confirmed_drafts"] == 2


def test_every_setting_of_the_command_is_used() -> None:
    known = {each.name for kind in (SchedulerConfig, SimMachine) for each in fields(kind)}
    assert {setting.name for setting in settings.SIMULATE_SETTINGS} <= known
    assert {setting.name for setting in settings.ENGINE if setting.name in known} == {
        setting.name for setting in settings.SIMULATE_SETTINGS
    }


FLEET = ("bench", "simulate", "--fleet", "4", "--max-running-requests", "8", "--max-prefill-tokens", "256")


@pytest.mark.full
def test_a_fleet_is_simulated_and_its_rules_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for _ in range(2):
        path = tmp_path / "fleet.json"
        words = ("--requests", "60", "--scaling-rules", "autoscaler,maximum", "--concurrency-ratio", "0.5")
        assert (
            main([*FLEET, *words, "--cold-start", "5,9", "--price", "2", "--processes", "1", "--json", str(path)]) == 0
        )
        texts.append(path.read_bytes())
    content = json.loads(texts[0])
    assert texts[0] == texts[1] and content["kind"] == "chairlift bench simulate --fleet"
    assert [arm["rule"] for arm in content["arms"]] == ["autoscaler", "maximum"]
    assert content["fleet"]["cold_start_seconds"] == [5.0, 9.0] and content["engine"]["max_running_requests"] == 8
    assert content["arms"][1]["cost"] == pytest.approx(2 * content["arms"][1]["replica_hours"])
    assert "concurrency 0.5" in capsys.readouterr().out


@pytest.mark.full
def test_a_fleet_serves_conversations_by_several_policies(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(CONVERSATION_LOADS, "shared", replace(CONVERSATION_LOADS["shared"], sessions=2))
    assert main([*FLEET, "--workload", "shared", "--policy", "prefix,random"]) == 0
    assert "hit rate" in capsys.readouterr().out
    assert main([*FLEET, "--policy", "prefix,random"]) == 2
    assert "several policies need a workload of conversations" in capsys.readouterr().err

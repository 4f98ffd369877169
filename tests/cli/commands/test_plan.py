"""`chairlift plan`: the command line, its output and its exit codes."""

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from chairlift.bench.planning import capacity
from chairlift.bench.planning.simulated_replica import SimulatedReplica
from chairlift.cli.main import main
from support_checkpoints import PUBLISHED
from support_cli import Terminal
from support_planning import LLAMA_70B

MACHINE = ("--cores", "4", "--memory", "16", "--input", "32", "--output", "8")


@pytest.fixture(autouse=True)
def few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "REQUESTS", (20, 20, 40))


def save(folder: Path, content: dict[str, Any]) -> str:
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    return str(folder)


@pytest.mark.full
def test_json_has_the_plan_of_a_folder_with_nothing_but_a_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save(tmp_path, PUBLISHED["Qwen3-0.6B"])
    assert main(["plan", model, *MACHINE, "--price", "1", "--json"]) == 0
    out, err = capsys.readouterr()
    values = json.loads(out)
    assert values["model"]["parameters"] == 596_049_920 and values["chairlift"]["runs_today"] and err == ""
    assert values["hardware"]["memory_bytes"] == 16 * 10**9 and values["cost"]["per_hour"] == 1


def test_the_table_is_for_people_and_the_embedded_model_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *MACHINE]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("model ") and "Chairlift runs this plan today" in out
    assert "no model given" in err and err.count("\n") == 1


def test_a_terminal_shows_each_trial_and_an_interrupt_erases_the_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal, run = Terminal(), SimulatedReplica.run
    monkeypatch.setattr("sys.stderr", terminal)
    assert main(["plan", *MACHINE]) == 0
    lines = [line for line in terminal.getvalue().split("\r\x1b[K") if line.startswith("simulating")]
    assert len(lines) > 3 and re.fullmatch(r"simulating trial 1 at \S+ requests/s \(tensor 1.*\)", lines[0])
    assert terminal.getvalue().endswith("\r\x1b[K") and all(map(str.isprintable, lines))

    def interrupt(replica: SimulatedReplica, workload: Any) -> Any:
        if "trial 2" in terminal.getvalue():
            signal.raise_signal(signal.SIGINT)
        return run(replica, workload)

    for words, output in (([], "trial 2"), (["--json"], "")):
        terminal.truncate(0)
        with monkeypatch.context() as patched:
            patched.setattr(SimulatedReplica, "run", interrupt)
            assert main(["plan", *MACHINE, *words]) == (130 if output else 0)
        assert (output in terminal.getvalue()) and ("simulating" in terminal.getvalue()) == bool(output)
    capsys.readouterr()


@pytest.mark.full
def test_too_few_gpus_are_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save(tmp_path, LLAMA_70B)
    words = ["--gpus", "4", "--input", "64", "--output", "8", "--rate", "200", "-q"]
    assert main(["plan", model, *words]) == 1
    out, _ = capsys.readouterr()
    assert "GPUs are missing; the 4 at hand serve" in out and "a replica needs 4 devices" in out


@pytest.mark.full
def test_a_model_that_is_not_chairlifts_own_is_planned_and_its_problems_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = PUBLISHED["Qwen3-0.6B"] | {"architectures": ["OtherForCausalLM"], "model_type": "other"}
    quantized = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
    assert main(["plan", save(tmp_path, content | quantized), *MACHINE, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["chairlift"]["problems"] == []
    assert values["sources"]["parameters"] == "estimated" and values["model"]["weight_bits"] == 4 + 20 / 128


@pytest.mark.full
def test_options_of_8_bit_floats_are_planned_and_in_the_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def planned(name: str, *words: str) -> dict[str, Any]:
        assert main(["plan", save(tmp_path, PUBLISHED["Qwen3-0.6B"] | {"architectures": [name]}), "--gpus", "1",
                     "--input", "64", "--output", "8", "--rate", "1", "--json", "-q", *words]) == 0  # fmt: skip
        values: dict[str, Any] = json.loads(capsys.readouterr().out)
        return values

    plain = planned("Qwen3ForCausalLM")
    float8 = planned("Qwen3ForCausalLM", "--quantization", "fp8", "--kv-cache-dtype", "fp8_e4m3")
    assert float8["model"]["kv_cache_dtype"] == "fp8" and plain["model"]["kv_cache_dtype"] == "auto"
    assert plain["model"]["kv_bytes_per_token"] == 2 * float8["model"]["kv_bytes_per_token"]
    assert 8 < float8["model"]["weight_bits"] < 8.1 and float8["model"]["weight_bytes"] < plain["model"]["weight_bytes"]
    assert "--quantization fp8 --kv-cache-dtype fp8 --max-memory" in float8["advice"][0]
    assert float8["chairlift"]["runs_today"] and "fp8" not in plain["advice"][0]
    assert planned("OtherForCausalLM", "--quantization", "fp8")["chairlift"]["problems"] == [
        "--quantization fp8 needs one of Chairlift's own architectures, not OtherForCausalLM"
    ]


@pytest.mark.full
def test_step_times_come_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = tmp_path / "times.json"
    times.write_text('{"step": 0.01, "origin": "measured"}', encoding="utf-8")
    assert main(["plan", *MACHINE, "--step-model", str(times), "--json", "-q"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["step_model"]["origin"] == "measured" and values["sources"]["step_times"] == "fitted"
    assert values["capacity"]["itl_ms_alone"] == pytest.approx(10)


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rate", "0"], "--rate must be a positive number of requests per second, got 0"),
        (["--ttft-ms", "0.001"], "no number of replicas reaches the targets"),
        (["--memory", "0.5"], "--memory is too small by "),
        (["--memory", "-1"], "--memory must be a positive number of GB, got -1"),
        (["--gpus", "-1"], "--gpus must be at least 0"), (["--cores", "-2"], "--cores must be at least 1"),
        (["--dtype", "int3"], "--dtype 'int3' is unknown"), (["--input", "9k"], "is longer than the model's"),
        (["--step-model", "missing.json"], "cannot read missing.json"),
        (["nowhere/at/all"], "there is no model folder"),
        (["chairlift:random"], "chairlift:random has no config.json"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_exit_code_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *MACHINE, *words, "-q"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and err.count("\n") == 1

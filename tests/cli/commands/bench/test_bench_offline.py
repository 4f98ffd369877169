"""`chairlift bench offline`: table, report, plot, comparisons, and exit codes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chairlift.bench.offline import comparison
from chairlift.bench.offline.run_spec import RunSpec
from chairlift.cli.commands.bench import bench_offline
from chairlift.cli.main import main
from chairlift.llm.builtin_models import DEMO, RANDOM, no_model_given
from support_cli import rejection_sentence
from support_models import save_tiny

FEW = ["--requests", "3", "--num-blocks", "300"]


def bench(*words: str) -> int:
    """Run the command with these words, by default with the tiny random model."""
    named = words[:1] if words[:1] and not words[0].startswith("-") else (RANDOM,)
    return main(["bench", "offline", *named, *words[words[:1] == named :]])


def rejected(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run a command line that must be rejected; returns its one sentence."""
    return rejection_sentence(capsys, bench(*words))


def test_a_run_of_the_tiny_model_gives_a_table_a_report_and_a_plot(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = [tmp_path / "out.json", tmp_path / "out.png"]
    words = [
        *FEW,
        "--seed",
        "4",
        "--max-running-requests",
        "2",
        "--batching-policy",
        "mixed",
        "--scheduling-policy",
        "fifo",
    ]
    assert bench(*words, "--json", str(files[0]), "--plot", str(files[1])) == 0
    out, err = capsys.readouterr()
    assert out.startswith("3 of 3 requests in ") and "output tokens/s" in out
    assert err == f"workload longtail on {RANDOM}\n"
    report = json.loads(files[0].read_text())
    assert report["seed"] == report["workload"]["seed"] == 4 and report["workload"]["requests"] == 3
    assert report["peak_running_requests"] == 2 == report["engine"]["max_running_requests"]
    assert report["command"].endswith("--json out.json --plot out.png") and str(tmp_path) not in files[0].read_text()
    assert files[1].read_bytes().startswith(b"\x89PNG")


def test_an_interrupt_says_what_was_done(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(spec: RunSpec, note: Any) -> None:
        for is_finished in (False, True, False):
            note(5, is_finished)
        raise KeyboardInterrupt

    def run_interleaved(arms: Any, spec: RunSpec, *, note: Any, **options: Any) -> None:
        note(arms[0], 0, {"output_tokens_per_second": 1.0})
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_offline, "measure", measure)
    monkeypatch.setattr(bench_offline, "run_interleaved", run_interleaved)
    for words, sentence in (
        ([], "1 of 3 requests and 15 output tokens were done"), (["--repeat", "2"], "1 of 2 runs were done"),
    ):  # fmt: skip
        assert bench(*FEW, *words) == 130
        report, error = capsys.readouterr().err.splitlines()[-2:]
        assert report == f"{sentence}; there is no report, and the next run begins anew"
        assert error == "chairlift: interrupted"


@pytest.mark.full
def test_without_a_model_the_embedded_one_runs_with_a_message(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["bench", "offline", *FEW, "--json", str(tmp_path / "out.json")]) == 0
    err = capsys.readouterr().err
    assert err == f"{no_model_given()}\nworkload longtail on {DEMO}\n"
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["model"]["name"] == DEMO and report["model"]["shape"]["num_hidden_layers"] == 4


@pytest.mark.full
def test_a_trace_with_a_request_that_fails_is_counted_and_ends_with_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl"
    lines = [{"prompt": [1, 2], "output_tokens": 900, "timeout": 0.01}, {"prompt_tokens": 3, "output_tokens": 2}]
    path.write_text("\n".join(map(json.dumps, lines)))
    assert bench("--workload", str(path), "--num-blocks", "300", "--json", str(tmp_path / "out.json")) == 1
    out, err = capsys.readouterr()
    assert out.startswith("1 of 2 requests in ")
    assert err.endswith("chairlift: 1 of 2 requests failed: 1 timeout\n")
    assert json.loads((tmp_path / "out.json").read_text())["requests"]["errors"] == {"timeout": 1}


@pytest.mark.full
def test_compared_options_run_alternately_in_processes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "MAX_QUIET_WAIT_SECONDS", 0.0)  # other tests run beside it
    words = ["--compare", "batching_policy=mixed,static", "--threads", "2", "--json", str(tmp_path / "out.json")]
    assert bench(*FEW, *words) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["batching_policy=mixed", "batching_policy=static"]
    assert "run 1 of 1: batching_policy=static" in err
    report = json.loads((tmp_path / "out.json").read_text())
    mixed, static = report["arms"]
    assert [arm["runs"][0]["engine"]["batching_policy"] for arm in (mixed, static)] == ["mixed", "static"]
    assert mixed["runs"][0]["threads"] == static["runs"][0]["threads"] == 2
    assert len(report["ratios"]) == 2 and report["ratios"][1]["by_turn"][0] > 0


@pytest.mark.full
def test_the_engine_is_compared_with_transformers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = save_tiny("llama", tmp_path / "model")
    capsys.readouterr()
    words = ["--workload", "w1", "--against", "transformers-continuous", "--dtype", "float32"]
    assert bench(str(folder), *FEW, *words, "--json", str(tmp_path / "out.json")) == 0
    report = json.loads((tmp_path / "out.json").read_text())
    assert [arm["name"] for arm in report["arms"]] == ["chairlift", "transformers-continuous"]
    runs = [arm["runs"][0] for arm in report["arms"]]
    assert len({run["workload_digest"] for run in runs}) == len({run["threads"] for run in runs}) == 1
    assert all(run["requests"]["completed"] == 3 for run in runs)
    assert report["model"]["name"] == "model" and report["model"]["shape"]["hidden_size"] == 64
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_compared_values_are_parsed_as_those_of_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    options_of_arms: list[dict[str, Any]] = []

    def record_arms(arms: list[comparison.Arm], run_spec: RunSpec, **options: Any) -> None:
        options_of_arms.extend({**run_spec.options, **arm.options} for arm in arms)
        assert options["repeat"] == 3
        raise KeyboardInterrupt

    monkeypatch.setattr("chairlift.cli.commands.bench.bench_offline.run_interleaved", record_arms)
    words = ["--compare", "max-running-requests=2,4", "--compare", "enable_prefix_caching=yes,no", "--repeat", "3"]
    assert bench(*words, "--scheduling-policy", "fifo") == 130
    pairs = [
        (each["max_running_requests"], each["enable_prefix_caching"], each["scheduling_policy"])
        for each in options_of_arms
    ]
    assert pairs == [(2, True, "fifo"), (2, False, "fifo"), (4, True, "fifo"), (4, False, "fifo")]


@pytest.mark.full
def test_an_integrity_error_ends_with_1(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from chairlift.cli.commands.bench import bench_offline

    real = bench_offline.measure
    monkeypatch.setattr(
        bench_offline,
        "measure",
        lambda *arguments: {**real(*arguments), "integrity_errors": ["block 5 has two holders"]},
    )
    assert bench(*FEW) == 1
    assert "integrity error of the engine: block 5 has two holders" in capsys.readouterr().err


@pytest.mark.full
def test_workload_options_come_from_the_environment_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"WORKLOAD": "uniform", "REQUESTS": "2", "TENANTS": "a=3,b", "NUM_BLOCKS": "300"}.items():
        monkeypatch.setenv(f"CHAIRLIFT_{name}", value)
    assert bench() == 0
    out, err = capsys.readouterr()
    assert "2 of 2 requests" in out and "workload uniform" in err


@pytest.mark.share(2)
@pytest.mark.parametrize("words", [["bench", "--help"], ["bench", "offline", "--help"], ["bench", "offline", "--x"]])
def test_help_and_usage_errors_import_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys\nfrom chairlift.cli.main import main\n"
        f"try: main({words!r})\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'msgspec', 'tokenizers', 'matplotlib', 'asyncio', 'zmq'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert completed.returncode == 0, completed.stderr


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["a", "b"], "unexpected argument 'b': the command takes one MODEL"),
        (["--workload", "w4"],
         "unknown --workload 'w4'; available are longtail, broadtail, uniform, prefix, w1, w2, w3 and a FILE.jsonl"),
        (["--workload", "none.jsonl"], "cannot read none.jsonl: No such file or directory"),
        (["--requests", "0"], "--requests must be at least 1, got 0"),
        (["--requests", "x"], "--requests must be an integer, got 'x'"),
        (["--repeat", "0"], "--repeat must be at least 1, got 0"),
        (["--threads", "0"], "--threads must be at least 1, got 0"),
        (["--rate", "0"], "--rate must be a positive number of requests per second, got 0"),
        (["--tenants", "a=x"], "--tenants must be pairs of name and share such as gold=2,silver=1, got 'a=x'"),
        (["--tenants", "a=-1"], "--tenants need positive shares, got {'a': -1.0}"),
        (["--compare", "batching_policy"], "--compare must be OPTION=A,B, got 'batching_policy'"),
        (["--compare", "batch=a,b"],
         "--compare names the unknown engine setting 'batch'; `chairlift bench offline --help` lists them"),
        (["--compare", "block_size=8,x"], "--compare block_size must be an integer, got 'x'"),
        (["--compare", "block_size=8", "--compare", "block-size=9"],
         "--compare names block_size twice; give all its values at once, as block_size=A,B"),
        (["--compare", "engine_mode=inline,thread"], "unknown engine_mode 'thread'; available are inline, process"),
        (["--profile", "x.json", "--repeat", "2"],
         "--profile needs a single run; leave out --repeat, --compare and --against, or --profile"),
        (["--against", "sglang"], "unknown peer 'sglang'; available are transformers, transformers-single, vllm, "
                                  "openvino, llama.cpp, transformers-static, transformers-continuous"),
        (["--against", "openvino"],
         "openvino needs --peer openvino.model=..: the folder that optimum-intel exported"),
        (["--peer", "vllm.python=x"], "--peer has a setting of vllm, which --against does not name"),
        (["--against", "transformers"], "transformers-static cannot run chairlift:random, which only Chairlift runs"),
        (["--json", "/no/such/out.json"], "cannot write /no/such/out.json: there is no folder /no/such"),
        (["--plot", "/no/such/out.png"], "cannot write /no/such/out.png: there is no folder /no/such"),
        (["--batching-policy", "best"],
         "unknown --batching-policy 'best'; available are decode_first, fifo, mixed, prefill_first, static"),
    ],
)  # fmt: skip
def test_invalid_input_is_one_sentence(capsys: pytest.CaptureFixture[str], words: list[str], sentence: str) -> None:
    assert rejected(capsys, *words) == sentence


@pytest.mark.full
def test_a_workload_that_exceeds_the_models_limit_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--workload", "w3", "--requests", "1", "--num-blocks", "300", "-q") == 2
    err = capsys.readouterr().err
    assert err.startswith("chairlift: request 0 of the workload: prompt has ") and err.count("\n") == 1

"""`chairlift generate`: results, messages on standard error, and exit codes."""

import gc
import json
import os
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import support_text
from chairlift import SamplingParams
from chairlift.cli.commands import generate
from chairlift.cli.main import main
from chairlift.cli.result_writer import OrderedWriter
from chairlift.llm.builtin_models import DEMO, RANDOM, no_model_given
from chairlift.llm.model_defaults import ModelDefaults
from chairlift.llm.text_service import TextService
from support_file_sizes import file_size_limit
from support_forks import TORCH_MODULES, run_process
from support_models import save_tiny
from support_process import engine_threads
from support_services import FAKE, Gate, fake_service, text_of, tokens_of, wait_until
from support_traces import check_trace, read_trace, requests_of, steps_of

SEEDED = SamplingParams(max_tokens=16, seed=3)
FLAGS = ["--max-tokens", "16", "--seed", "3"]


class FakePrepare:
    """Replaces `prepare`: starts a fake service instead of a model."""

    def __init__(self) -> None:
        self.make: Callable[[], TextService] = fake_service
        self.options: dict[str, Any] = {}
        self.tokenizer: object | None = object()
        self.started: list[TextService] = []

    def prepare(self, model: str | None, options: dict[str, Any]) -> "FakePrepare":
        self.options = {"model": model, **options}
        return self

    def start(self) -> TextService:
        self.started.append(self.make())
        return self.started[-1]


@pytest.fixture
def fake_prepare(monkeypatch: pytest.MonkeyPatch) -> FakePrepare:
    fake = FakePrepare()
    monkeypatch.setattr(generate, "prepare", fake.prepare)
    monkeypatch.delenv("CHAIRLIFT_CPU_THREADS", raising=False)  # conftest.py sets it
    return fake


def jsonl(path: Path, *lines: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def read(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# -- one prompt --------------------------------------------------------------------------------------------------------


def test_one_prompt_prints_its_text_and_a_summary_on_standard_error(
    fake_prepare: FakePrepare, capsys: pytest.CaptureFixture[str]
) -> None:
    before = engine_threads()
    assert main(["generate", "m", "--prompt", "hello", *FLAGS]) == 0
    out, err = capsys.readouterr()
    text = text_of("hello", SEEDED)
    assert out == (text if text.endswith("\n") else text + "\n")
    assert err.startswith("loading m\n")
    summary = err.splitlines()[-1]
    assert summary.startswith("16 tokens in ") and "tokens/s" in summary
    assert summary.endswith("finish reason length, seed 3") and "first token after" in summary
    wait_until(lambda: engine_threads() <= before)


def test_quiet_leaves_the_text_alone(fake_prepare: FakePrepare, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "m", "-q", "--prompt", "hello", *FLAGS]) == 0
    assert capsys.readouterr().err == ""


def test_json_is_one_object_and_nothing_else(fake_prepare: FakePrepare, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "m", "--json", "--prompt", "hello", "--logprobs", "0", *FLAGS]) == 0
    (line,) = read(capsys.readouterr().out)
    assert (line["prompt"], line["text"], line["seed"]) == ("hello", text_of("hello", SEEDED), 3)
    assert line["token_ids"] == tokens_of("hello", SEEDED) and len(line["logprobs"]) == 16
    assert line["usage"] == {"prompt_tokens": 5, "completion_tokens": 16, "cached_tokens": 0}


def test_the_result_of_one_prompt_can_go_to_a_file_too(
    fake_prepare: FakePrepare, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = tmp_path / "out.jsonl"
    assert main(["generate", "m", "--prompt", "hello", "--output", str(target), *FLAGS]) == 0
    (line,) = read(target.read_text())
    assert line["text"] == text_of("hello", SEEDED) and capsys.readouterr().out.startswith(line["text"])


def test_without_a_prompt_the_default_one_runs(fake_prepare: FakePrepare, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "m", *FLAGS]) == 0
    assert "no prompt given, using 'What is continuous batching?'" in capsys.readouterr().err


def pipe_into_generate(content: bytes, *words: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "chairlift", "generate", RANDOM, "--max-tokens", "3", "--quiet", *words]
    environ = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0"}
    return run_process(command, modules=TORCH_MODULES, input=content, env=environ)


def test_a_pipe_is_the_prompt_when_none_is_given() -> None:
    completed = pipe_into_generate("größer\n".encode(), "--json")
    assert completed.returncode == 0 and json.loads(completed.stdout)["prompt"] == "größer", completed.stderr
    ignored = pipe_into_generate(b"pipe", "--json", "--prompt", "flag")
    assert json.loads(ignored.stdout)["prompt"] == "flag"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"", b"the prompt is empty: standard input has no text"), (b"hi \xff\n", b"standard input is not UTF-8")],
)
def test_a_pipe_without_text_is_one_sentence(content: bytes, sentence: bytes) -> None:
    completed = pipe_into_generate(content)
    assert completed.returncode == 2 and completed.stdout == b"" and completed.stderr.count(b"\n") == 1
    assert completed.stderr.startswith(b"chairlift: " + sentence)


@pytest.mark.full
def test_a_closed_output_pipe_ends_the_command_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "chairlift", "generate", RANDOM, "-q", "--prompt", "hi", "--max-tokens", "9"]
    completed = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=120, check=False)
    os.close(writer)
    assert completed.returncode == 141 and completed.stderr == b""


@pytest.mark.share(1)
@pytest.mark.parametrize("named", [[], [DEMO]])
def test_the_demo_model_uses_its_chat_template_unless_no_chat_is_given(
    fake_prepare: FakePrepare, capsys: pytest.CaptureFixture[str], tmp_path: Path, named: list[str]
) -> None:
    assert main(["generate", *named, "--json", "--prompt", "hi", *FLAGS]) == 0
    out, err = capsys.readouterr()
    assert read(out)[0]["token_ids"] == tokens_of("user=hi;a=", SEEDED)
    assert err.splitlines()[0] == (no_model_given() if not named else f"loading {DEMO}")
    messages = [{"role": "tool", "content": "x"}]
    prompts = jsonl(tmp_path / "p.jsonl", {"prompt": "hi"}, {"prompt": [98]}, {"messages": messages})
    assert main(["generate", *named, "--prompts", prompts, *FLAGS]) == 0
    first, ids, own = read(capsys.readouterr().out)
    assert first["messages"] == [{"role": "user", "content": "hi"}] and ids["prompt"] == [98]
    assert own["messages"] == messages
    assert main(["generate", *named, "--no-chat", "--json", "--prompt", "hi", *FLAGS]) == 0
    assert read(capsys.readouterr().out)[0]["token_ids"] == tokens_of("hi", SEEDED)


def test_without_a_model_a_message_names_the_demo_model_unless_quiet(
    fake_prepare: FakePrepare, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "--prompt", "hi", *FLAGS]) == 0
    assert capsys.readouterr().err.splitlines()[0] == no_model_given()
    assert main(["generate", "-q", "--prompt", "hi", *FLAGS]) == 0
    assert capsys.readouterr().err == "" and fake_prepare.options == {"model": None}


def test_chat_goes_through_the_template(fake_prepare: FakePrepare, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "m", "--chat", "--json", "--prompt", "hi", *FLAGS]) == 0
    (line,) = read(capsys.readouterr().out)
    assert line["messages"] == [{"role": "user", "content": "hi"}]
    assert line["token_ids"] == tokens_of("user=hi;a=", SEEDED)


def test_options_reach_the_engine_and_the_request(
    fake_prepare: FakePrepare, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = text_of("hello", SEEDED)[8:10]
    arguments = ["some/model", "--prompt", "hello", "--stop", stop, "--num-blocks", "9", "--no-enable-prefix-caching"]
    assert main(["generate", *arguments, "--json", "--overlap", "--revision", "v1", *FLAGS]) == 0
    out, err = capsys.readouterr()
    assert fake_prepare.options == {
        "model": "some/model", "num_blocks": 9, "enable_prefix_caching": False, "overlap": True, "revision": "v1",
    }  # fmt: skip
    (line,) = read(out)
    assert line["stop_reason"] == stop and line["text"] == text_of("hello", SEEDED)[:8]
    assert "loading some/model" in err


def test_the_models_defaults_are_used_and_shown(fake_prepare: FakePrepare, capsys: pytest.CaptureFixture[str]) -> None:
    defaults = ModelDefaults(eos_token_ids=(5, 6), sampling={"temperature": 0.0, "top_k": 20})
    fake_prepare.make = lambda: fake_service(defaults=defaults)
    assert main(["generate", "m", "--json", "--prompt", "hello", "--max-tokens", "3"]) == 0
    out, err = capsys.readouterr()
    assert "temperature 0, top_k 20" in err and "5, 6" in err
    assert read(out)[0]["token_ids"] == tokens_of("hello", SamplingParams(temperature=0, max_tokens=3), (5, 6))


@pytest.mark.parametrize(("own", "expected"), [(None, 256), (7, 7)])
def test_the_default_length_is_the_models_or_256(
    fake_prepare: FakePrepare, capsys: pytest.CaptureFixture[str], own: int | None, expected: int
) -> None:
    fake_prepare.make = lambda: fake_service(defaults=ModelDefaults(max_tokens=own))
    assert main(["generate", "m", "--json", "--prompt", "hello"]) == 0
    assert read(capsys.readouterr().out)[0]["usage"]["completion_tokens"] == expected


def test_a_failed_request_is_exit_code_1_and_says_why(
    fake_prepare: FakePrepare, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_prepare.make = lambda: fake_service(replace(FAKE, nan=ord("!")))
    assert main(["generate", "m", "--prompt", "bad!", *FLAGS]) == 1
    assert "the request failed (non_finite_logits)" in capsys.readouterr().err


def test_a_prompt_that_is_too_long_is_rejected_with_both_numbers(
    fake_prepare: FakePrepare, capsys: pytest.CaptureFixture[str]
) -> None:
    before = engine_threads()
    assert main(["generate", "m", "--prompt", "x" * 600, *FLAGS]) == 2
    assert "chairlift: prompt has 600 tokens, the limit is 512" in capsys.readouterr().err
    wait_until(lambda: engine_threads() <= before)


def test_text_without_a_tokenizer_is_rejected_before_the_weights_are_loaded(
    fake_prepare: FakePrepare, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    fake_prepare.tokenizer = None
    prompts = jsonl(tmp_path / "p.jsonl", {"prompt": [1, 2]}, {"prompt": "text"})
    assert main(["generate", "m", "--prompts", prompts]) == 2
    assert capsys.readouterr().err.endswith("p.jsonl line 2: m has no tokenizer.json, so a prompt must be token ids\n")
    assert fake_prepare.started == []


# -- a file of prompts -------------------------------------------------------------------------------------------------


def test_a_file_gives_results_in_its_order_with_the_lines_own_options(
    fake_prepare: FakePrepare, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = [{"prompt": f"prompt {n}", "max_tokens": 30 - n, "seed": n, "id": f"n{n}"} for n in range(20)]
    target = tmp_path / "out.jsonl"
    target.write_text("old")
    assert main(["generate", "m", "--prompts", jsonl(tmp_path / "p.jsonl", *lines), "--output", str(target)]) == 0
    results = read(target.read_text())
    assert [each["id"] for each in results] == [f"n{n}" for n in range(20)]
    for number, each in enumerate(results):
        assert each["token_ids"] == tokens_of(f"prompt {number}", SamplingParams(max_tokens=30 - number, seed=number))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith("20 requests in ") and "410 output tokens" in err and "20 length" in err


def test_results_go_to_standard_output_without_a_file_and_with_json_to_both(
    fake_prepare: FakePrepare, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    prompts = jsonl(tmp_path / "p.jsonl", {"prompt": "a"}, {"prompt": [98]})
    assert main(["generate", "m", "--prompts", prompts, *FLAGS]) == 0
    first = capsys.readouterr().out
    assert [each["prompt"] for each in read(first)] == ["a", [98]]
    assert main(["generate", "m", "--prompts", prompts, "--json", "--output", str(tmp_path / "o"), *FLAGS]) == 0
    assert capsys.readouterr().out == first == (tmp_path / "o").read_text()


def test_a_request_that_fails_is_a_line_with_its_error_and_exit_code_1(
    fake_prepare: FakePrepare, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    fake_prepare.make = lambda: fake_service(replace(FAKE, nan=ord("!")))
    prompts = jsonl(tmp_path / "p.jsonl", {"prompt": "a", "max_tokens": 2}, {"prompt": "!"}, {"prompt": "b"})
    assert main(["generate", "m", "--prompts", prompts, "--max-tokens", "1", "--seed", "1"]) == 1
    out, err = capsys.readouterr()
    good, bad, also_good = read(out)
    assert good["error"] is None and also_good["error"] is None
    assert bad["error"]["code"] == "non_finite_logits" and bad["finish_reason"] == "error"
    assert "1 error, 2 length (1 non_finite_logits)" in err


def test_an_invalid_line_is_named_and_nothing_is_run_or_overwritten(
    fake_prepare: FakePrepare, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = tmp_path / "out.jsonl"
    target.write_text("old")
    prompts = jsonl(tmp_path / "p.jsonl", {"prompt": "a"}, {"prompt": [999]})
    assert main(["generate", "m", "--prompts", prompts, "--output", str(target), *FLAGS]) == 2
    assert "p.jsonl line 2: prompt: token id 999 is outside the vocabulary, which has 128" in capsys.readouterr().err
    assert target.read_text() == "old"


def test_the_output_is_rejected_before_anything_starts(
    fake_prepare: FakePrepare, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    prompts = jsonl(tmp_path / "p.jsonl", {"prompt": "a"})
    for target, message in (
        (prompts, "--prompts and --output are the same file"),
        (str(tmp_path / ".." / tmp_path.name / "p.jsonl"), "--prompts and --output are the same file"),
        (str(tmp_path), "it is a folder"),
        (str(tmp_path / "no" / "x"), "there is no folder"),
    ):
        assert main(["generate", "m", "--prompts", prompts, "--output", target]) == 2
        err = capsys.readouterr().err
        assert message in err and err.count("\n") == 1
    assert fake_prepare.started == []


def test_a_full_disk_is_one_sentence_and_keeps_whole_results(
    fake_prepare: FakePrepare, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    prompts = jsonl(tmp_path / "p.jsonl", *({"prompt": f"r{number}"} for number in range(3)))
    target = tmp_path / "out.jsonl"
    assert main(["generate", "m", "--prompts", prompts, "--output", str(target), *FLAGS]) == 0
    first, capsys_before = target.read_text().splitlines()[0], capsys.readouterr()
    with file_size_limit(len(first) + 20):
        assert main(["generate", "m", "--prompts", prompts, "--output", str(target), *FLAGS]) == 1
    assert target.read_text() == first + "\n" and capsys_before.out == ""
    *_, kept, error = capsys.readouterr().err.splitlines()
    assert error == f"chairlift: cannot write {target}: file too large"
    assert kept.startswith(f"not all done: 1 results are in {target}; the other 2 requests have none there, and ")


def test_an_interrupt_keeps_what_is_finished_and_aborts_the_rest(
    fake_prepare: FakePrepare, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate closes after the short requests, not the first ones, are recorded."""
    before, callbacks = engine_threads(), gc.callbacks[:]
    gate, recorded = Gate(after=20), []
    put = OrderedWriter.put
    monkeypatch.setattr(OrderedWriter, "put", lambda self, *each: (put(self, *each), recorded.append(each)))
    fake_prepare.make = lambda: fake_service(hook=gate)
    lines = [{"prompt": f"r{n}", "max_tokens": 4 if n % 2 else 300, "seed": n} for n in range(6)]
    target, main_thread = tmp_path / "out.jsonl", threading.get_ident()

    def interrupt() -> None:
        gate.reached.wait(30)
        wait_until(lambda: len(recorded) == 3)
        threading.Timer(0.1, gate.opened.set).start()
        signal.pthread_kill(main_thread, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    gc.callbacks.clear()  # an exception in a callback of the garbage collector, such as Hypothesis's, is lost
    try:
        code = main(["generate", "m", "--prompts", jsonl(tmp_path / "p.jsonl", *lines), "--output", str(target)])
    finally:
        gc.callbacks[:] = callbacks
    thread.join()
    assert code == 130
    assert [each["id"] for each in read(target.read_text())] == [2, 4, 6]
    err = capsys.readouterr().err
    assert f"3 results are in {target}; the other 3 requests have none there, and " in err
    assert "3 of 6 requests" in err and err.endswith("chairlift: interrupted\n") and "Traceback" not in err
    wait_until(lambda: engine_threads() <= before)


def test_an_engine_that_dies_is_exit_code_1_and_every_line_says_so(
    fake_prepare: FakePrepare, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def die(plan: Any, stage: str) -> None:
        from chairlift.core.errors import EngineDead

        if plan.step_id > 3:
            raise EngineDead("the engine died of the test")

    fake_prepare.make = lambda: fake_service(hook=die)
    prompts = jsonl(tmp_path / "p.jsonl", *({"prompt": "a"} for _ in range(3)))
    assert main(["generate", "m", "-q", "--prompts", prompts]) == 1
    assert [each["error"]["code"] for each in read(capsys.readouterr().out)] == ["engine_dead"] * 3


# -- with models -------------------------------------------------------------------------------------------------------


def test_a_folder_and_the_tiny_model_work_from_end_to_end(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = save_tiny("llama", tmp_path / "llama", vocab_size=700)
    support_text.save_tokenizer(folder, *support_text.build_tokenizer("qwen"))
    prompts = jsonl(tmp_path / "p.jsonl", {"prompt": "The lift"}, {"prompt": [5, 6, 7]})
    arguments = ["generate", str(folder), "--prompts", prompts, "--temperature", "0", "--max-tokens", "5"]
    assert main([*arguments, "--dtype", "float64", "--num-blocks", "64"]) == 0
    out, err = capsys.readouterr()
    assert [each["usage"]["completion_tokens"] for each in read(out)] == [5, 5]
    assert "float64" in err and "ready after" in err
    assert main(["generate", RANDOM, "-q", "--prompt", "hi", "--max-tokens", "3", "--num-blocks", "8"]) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("value", ["auto", "AUTO", "-1"])
def test_the_length_auto_is_as_many_tokens_as_the_cache_holds(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", RANDOM, "--prompt", "hi", "--max-tokens", "3", "--num-blocks", "8", "--max-model-len", value]
    assert main(words) == 0
    assert "129 (as many as the KV cache holds; the model's limit is 1024)" in capsys.readouterr().err


@pytest.mark.full
def test_a_terminal_shows_a_progress_bar(tmp_path: Path) -> None:
    terminal, device = os.openpty()
    termios.tcsetwinsize(device, (24, 100))
    prompts = jsonl(tmp_path / "p.jsonl", *({"prompt": "a"} for _ in range(3)))
    command = [sys.executable, "-m", "chairlift", "generate", RANDOM, "--prompts", prompts, "--max-tokens", "3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=device, stdin=subprocess.DEVNULL) as process:
        os.close(device)
        screen = b""
        try:
            while data := os.read(terminal, 4096):
                screen += data
        except OSError:  # a pseudo-terminal raises it at its end
            pass
        assert process.stdout is not None and len(process.stdout.read().splitlines()) == 3
    os.close(terminal)
    assert b"3/3" in screen and b"output tok/s" in screen


def test_a_profile_of_the_steps_is_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = [RANDOM, "--prompt", "x", "--max-tokens", "5", "--ignore-eos", "--num-blocks", "50"]
    assert main(["generate", "-q", *words, "--profile", str(tmp_path / "trace.json")]) == 0
    events = read_trace(tmp_path / "trace.json")
    check_trace(events)
    assert len(steps_of(events)) == 5 and list(requests_of(events).values()) == [["queued", "prefill", "decode"]]
    assert main(["generate", *words, "--profile", str(tmp_path)]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"chairlift: cannot write {tmp_path}: it is a folder"

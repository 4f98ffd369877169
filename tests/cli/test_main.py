"""main(): fast help, exit codes, one sentence for invalid input, signals and pipes."""

import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import chairlift
from chairlift.cli.main import main
from chairlift.core.errors import EngineDead, QueueFull
from chairlift.llm.builtin_models import RANDOM
from support_cli import rejection_sentence
from support_forks import TORCH_MODULES, process_start

HEAVY = (
    "torch",
    "numpy",
    "transformers",
    "tokenizers",
    "msgspec",
    "jinja2",
    "huggingface_hub",
    "tqdm",
    "zmq",
    "yaml",
    "asyncio",
)


def python(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120, **options)


def rejected(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command line that must be rejected; returns its one sentence."""
    return rejection_sentence(capsys, main(arguments))


# -- help --------------------------------------------------------------------------------------------------------------


@pytest.mark.share(2)
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["generate", "--help"],
        ["doctor", "--help"],
        ["serve", "--help"],
        ["config", "show", "--help"],
        ["help", "bench", "serve"],
        ["version"],
        ["generate", "--x"],
    ],
)
def test_help_and_usage_errors_import_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom chairlift.cli.main import main\n"
        f"try: main({arguments!r})\nexcept SystemExit: pass\n"
        f"sys.exit(' '.join(name for name in {HEAVY!r} if name in sys.modules) or 0)"
    )
    completed = python("-c", code)
    assert completed.returncode == 0, completed.stderr


@pytest.mark.full
def test_a_file_that_cannot_be_read_is_rejected_before_torch_is_imported(tmp_path: Path) -> None:
    arguments = ["generate", "--prompts", str(tmp_path / "none.jsonl")]
    code = f"import sys\nfrom chairlift.cli.main import main\nmain({arguments!r})\nsys.exit('torch' in sys.modules)"
    completed = python("-c", code)
    assert completed.returncode == 0 and "cannot read" in completed.stderr


def test_help_names_every_option_and_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["generate", "--help"])
    out = capsys.readouterr().out
    assert caught.value.code == 0
    for word in (
        "--prompt ",
        "--prompts ",
        "--output ",
        "--json",
        "--max-tokens",
        "--num-blocks",
        "CHAIRLIFT_MAX_TOKENS",
    ):
        assert word in out
    assert max(map(len, out.splitlines())) <= 120


def test_python_m_chairlift_is_the_command_line() -> None:
    completed = python("-m", "chairlift", "--version")
    assert (completed.returncode, completed.stdout) == (0, f"chairlift {chairlift.__version__}\n")


# -- invalid input -----------------------------------------------------------------------------------------------------


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["generat"], "unknown command 'generat'; did you mean 'generate'?"),
        (["generate", "--max_tokns=1"], "unknown option --max-tokns; did you mean --max-tokens?"),
        (["generate", "--temprature", "1"], "unknown option --temprature; did you mean --temperature?"),
        (["generate", "--temprature=1"], "unknown option --temprature; did you mean --temperature?"),
        (["generate", "-x"], "unknown option -x; `chairlift generate --help` lists the options"),
        (["generate", "a", "b"], "unexpected argument 'b': the command takes one MODEL, and a prompt follows --prompt"),
        (["generate", "--max-tokens"], "--max-tokens needs a value"),
        (["generate", "--max-tokens", "many"], "--max-tokens must be an integer, got 'many'"),
        (["generate", "--temperature", "5"], "--temperature must be between 0 and 2, got 5.0"),
        (
            ["generate", "--max-tokens", "0"],
            "--max-tokens must be between 1 and 2147483647, got 0 without echo or --prompt-logprobs",
        ),
        (["generate", "--top-p", "nan"], "--top-p must be between 0 and 1, got nan"),
        (["generate", "--timeout", "-1"], "--timeout must be a positive number of seconds, got -1"),
        (["generate", "--timeout", "nan"], "--timeout must be a positive number of seconds, got nan"),
        (["generate", "--prompt", "x", "--prompts", "y"], "--prompt and --prompts cannot be given together"),
        (["generate", "--prompt", ""], "the prompt is empty; --prompt needs text"),
        (["generate", "-v", "-q"], "-q/--quiet and -v/--verbose cannot be given together"),
        (["generate", "--max-batch-tokens", "0"], "--max-batch-tokens must be at least 1, got 0"),
        (["generate", "--scheduling-policy", "best"],
         "unknown --scheduling-policy 'best'; available are cache_aware, fair, fifo, priority"),
        (["generate", "--engine-mode", "thread"], "unknown --engine-mode 'thread'; available are inline, process"),
    ],
)  # fmt: skip
def test_an_invalid_command_line_is_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert rejected(capsys, *arguments) == sentence


def test_a_missing_model_is_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "no model folder '/no/such'" in rejected(capsys, "generate", "/no/such")
    assert f"no config.json in {tmp_path}" in rejected(capsys, "generate", str(tmp_path))
    (tmp_path / "config.json").write_text('{"architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2"}')
    assert "Mamba2ForCausalLM has no attention heads" in rejected(capsys, "generate", str(tmp_path))


def test_an_invalid_environment_variable_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAIRLIFT_OVERLAP", "maybe")
    assert rejected(capsys, "generate").startswith("CHAIRLIFT_OVERLAP must be one of 1, true")


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    err = capsys.readouterr().err
    assert "usage: chairlift" in err and err.endswith("chairlift: name a command, such as `chairlift serve`\n")


# -- errors of a command -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (EngineDead("the engine died"), 1, "the engine died"),
        (QueueFull(3, 3), 1, "the waiting queue is full"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(28, "No space left on device"), 1, "cannot write the standard output: no space left on device"),
        (OSError(28, "No space left on device", "a/b"), 1, "No space left on device: a/b"),
        (EngineDead("of \x1b[31ma server\x07"), 1, "of \ufffd[31ma server\ufffd"),
        (RuntimeError("two\nlines"), 1, "RuntimeError: two lines (run with -v for the traceback)"),
    ],
)
def test_each_kind_of_end_has_its_exit_code_and_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    def fail(arguments: Any) -> int:
        raise error

    monkeypatch.setattr("chairlift.cli.commands.generate.run", fail)
    assert main(["generate"]) == code
    err = capsys.readouterr().err
    assert err.startswith(f"chairlift: {message}") and err.count("\n") == 1


def test_verbose_shows_the_traceback(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: Any) -> int:
        raise RuntimeError("deep inside http://u:secret@h")

    monkeypatch.setattr("chairlift.cli.commands.generate.run", fail)
    assert main(["generate", "-v"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err and err.count("deep inside http://***@h") >= 2 and "secret" not in err


def test_a_refused_url_is_shown_without_its_password(capsys: pytest.CaptureFixture[str]) -> None:
    for options in (["--replica", "http://u:secret@h"], ["--discovery", "etcd://root:secret@h/x"]):
        assert "***@h" in (sentence := rejected(capsys, "router", *options)) and "secret" not in sentence


def test_ctrl_c_ends_a_stream_with_130_and_one_line() -> None:
    command = [sys.executable, "-m", "chairlift", "generate", RANDOM, "-q", "--max-tokens", "900", "--ignore-eos"]
    start = process_start(is_forked=True, modules=TORCH_MODULES)
    running = start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    try:
        assert os.read(running.stdout.fileno(), 1)  # it streams
        running.send_signal(signal.SIGINT)
        assert running.communicate(timeout=60)[1] == b"chairlift: interrupted\n"
        assert running.returncode == 130
    finally:
        running.kill()


def test_a_broken_pipe_ends_the_command_quietly() -> None:
    command = [sys.executable, "-m", "chairlift", "generate", RANDOM, "-q", "--max-tokens", "900", "--ignore-eos"]
    start = process_start(is_forked=True, modules=TORCH_MODULES)
    running = start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert os.read(running.stdout.fileno(), 1)
        running.stdout.close()
        assert running.stderr.read() == b""
        assert running.wait(60) == 141
    finally:
        running.kill()
        running.stderr.close()


def test_help_without_room_or_reader_ends_with_one_sentence_or_none() -> None:
    start = process_start(is_forked=True, modules=TORCH_MODULES)
    command = [sys.executable, "-m", "chairlift", "help", "serve"]
    with open("/dev/full", "wb") as full:
        running = start(command, stdout=full, stderr=subprocess.PIPE)
        assert running.stderr.read() == b"chairlift: cannot write the standard output: no space left on device\n"
        assert running.wait(60) == 1
        running.stderr.close()
    reader, writer = os.pipe()
    os.close(reader)
    running = start(command, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (running.stderr.read(), running.wait(60)) == (b"", 141)
    running.stderr.close()


@pytest.mark.full
def test_output_is_utf_8_whatever_the_encoding_of_the_terminal() -> None:
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    completed = subprocess.run(
        [sys.executable, "-m", "chairlift", "generate", RANDOM, "-q", "--json", "--prompt", "中", "--max-tokens", "1"],
        capture_output=True, env=environ, timeout=120,
    )  # fmt: skip
    assert completed.returncode == 0 and "中" in completed.stdout.decode("utf-8")


def test_input_is_utf_8_whatever_the_encoding_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("中".encode() + b"\xff"), encoding="ascii"))
    with pytest.raises(SystemExit):
        main(["version"])
    assert sys.stdin.read() == "中\ufffd"


@pytest.mark.full
@pytest.mark.parametrize(("words", "code"), [("--prompt x", 0), ("--prompt -", 2), ("--prompts -", 2)])
def test_closed_streams_are_empty(tmp_path: Path, words: str, code: int) -> None:
    command = f"{sys.executable} -m chairlift generate {RANDOM} --max-tokens 1 {words} --output out.jsonl <&- >&- 2>&-"
    assert subprocess.run(command, shell=True, cwd=tmp_path, timeout=120).returncode == code
    assert (tmp_path / "out.jsonl").exists() == (code == 0)


@pytest.mark.full
def test_messages_are_never_among_the_results() -> None:
    command = f"{sys.executable} -m chairlift generate {RANDOM} --json --max-tokens 1 --prompt x 2>&-"
    completed = subprocess.run(command, shell=True, stdout=subprocess.PIPE, timeout=120)
    assert completed.returncode == 0 and completed.stdout.startswith(b"{") and completed.stdout.count(b"\n") == 1


@pytest.mark.full
def test_sigterm_ends_a_command_as_an_interrupt_does_even_where_that_is_ignored() -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, {ignored})\n"
        "from chairlift.cli import main\nfrom chairlift.cli.commands import generate\n"
        "def work(arguments):\n"
        "    try:\n"
        "        print('ready', flush=True)\n"
        "        time.sleep(60)\n"
        "    finally: print('cleaned up', flush=True)\n"
        "generate.run = work\n"
        "sys.exit(main.main(['generate']))"
    )
    for ignored in ("signal.default_int_handler", "signal.SIG_IGN"):
        command = [sys.executable, "-c", code.format(ignored=ignored)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (143, "cleaned up\n", "chairlift: terminated\n")

"""`chairlift chat`: the conversation, its commands, and answers that fail or are stopped."""

import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chairlift.cli.chat_backends import AnswerStats, ChatFailed, Message
from chairlift.cli.chat_sampling import ChatSampling
from chairlift.cli.commands.chat import ALIASES, HELP, ChatSession, _read_question
from chairlift.cli.console import Console
from support_forks import TORCH_MODULES, run_process
from support_shares import for_each


class EchoBackend:
    """Answers with the last question in pieces, and records its requests."""

    name = "echo"

    def __init__(self) -> None:
        self.requests: list[tuple[list[Message], dict[str, Any]]] = []

    def stream_answer(self, messages: list[Message], options: dict[str, Any], stats: AnswerStats) -> Iterator[str]:
        self.requests.append(([dict(message) for message in messages], dict(options)))
        text = messages[-1]["content"]
        if text == "fail":
            raise ChatFailed("no server")
        yield "echo "
        if text == "stop":
            raise KeyboardInterrupt
        yield text
        stats.output_tokens, stats.seconds, stats.finish_reason = 2, 0.5, "stop"


def run_chat(*lines: str, **options: Any) -> tuple[ChatSession, EchoBackend, str]:
    """Run a chat of these lines; returns the session, its backend and standard error."""
    backend, errors = EchoBackend(), io.StringIO()
    chat = ChatSession(backend, Console(file=errors), ChatSampling(options))
    assert chat.run(iter(lines)) == 0
    return chat, backend, errors.getvalue()


def texts(chat: ChatSession) -> list[str]:
    return [message["content"] for message in chat.messages]


def test_the_conversation_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    chat, backend, _ = run_chat("one", "", "two")
    assert texts(chat) == ["one", "echo one", "two", "echo two"]
    assert [len(messages) for messages, _ in backend.requests] == [1, 3]
    assert capsys.readouterr().out == "echo one\necho two\n"


def test_commands_change_the_conversation() -> None:
    assert texts(run_chat("/system Be brief.", "one", "/new")[0]) == ["Be brief."]
    assert texts(run_chat("/system a", "/system b", "one")[0]) == ["b", "one", "echo one"]
    assert texts(run_chat("/system a", "/system")[0]) == []
    assert texts(run_chat("one", "two", "/undo")[0]) == ["one", "echo one"]
    chat, backend, _ = run_chat("one", "/retry")
    assert (
        texts(chat) == ["one", "echo one"]
        and len(backend.requests) == 2
        and backend.requests[0][0] == backend.requests[1][0]
    )


def test_quit_ends_the_chat() -> None:
    assert run_chat("one", "/quit", "two")[1].requests[-1][0][-1]["content"] == "one"


def test_an_answer_that_fails_is_not_part_of_the_conversation() -> None:
    chat, _, errors = run_chat("one", "fail", "two")
    assert texts(chat) == ["one", "echo one", "two", "echo two"] and "no server" in errors


def test_the_text_of_a_stopped_answer_is_kept() -> None:
    chat, _, errors = run_chat("stop", "go on")
    assert texts(chat)[:2] == ["stop", "echo "] and "(stopped)" in errors


def test_options_are_set_shown_and_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    _, backend, errors = run_chat(
        "/set temperature 0.5", "a", "/set stop x", "/set max-tokens 7", "b", "/set parameter", "/set temperature", "c",
        "/set q 1", "/set temperature hot", seed=3,
    )  # fmt: skip
    assert [options for _, options in backend.requests] == [
        {"seed": 3, "temperature": 0.5}, {"seed": 3, "temperature": 0.5, "stop": ["x"], "max_tokens": 7},
        {"seed": 3, "stop": ["x"], "max_tokens": 7},
    ]  # fmt: skip
    assert "  max_tokens           7\n" in capsys.readouterr().out
    assert errors.splitlines() == [
        "temperature is 0.5; it was the default (the model's, else 1)",
        'stop is ["x"]; it was the default (none)',
        "max_tokens is 7; it was the default (as many as the model's context holds)",
        "temperature is reset to the default (the model's, else 1); it was 0.5",
        "unknown setting 'q'; available are max_tokens, stop, temperature, top_k, top_p, min_p, seed, "
        "repetition_penalty, presence_penalty, frequency_penalty",
        "temperature must be a number, got 'hot'; it is from 0 to 2",
    ]


def test_statistics_are_printed_after_an_answer() -> None:
    assert run_chat("one")[2] == ""
    assert run_chat("/stats", "one", "/stats")[2] == (
        "tokens and speed after each answer are on\n"
        "0 prompt tokens, 2 output tokens in 0.50 s (4.0 tokens/s), finish reason stop\n"
        "tokens and speed after each answer are off\n"
    )


def test_a_saved_conversation_is_loaded_and_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    run_chat("one", "/save ~/talk.json")
    chat, _, _ = run_chat(f"/load {tmp_path / 'talk.json'}", "/load ~/talk.json", "two")
    assert texts(chat) == ["one", "echo one", "two", "echo two"]


@for_each(("line", "sentence"), [
    ("/frobnicate", "unknown command /frobnicate; /help lists the commands, //frobnicate asks /frobnicate"),
    ("/sytem x", "unknown command /sytem; did you mean /system?"), ("/cler", "did you mean /clear?"),
    ("/set temprature 1", "unknown setting 'temprature'; did you mean temperature?"),
    ("/set temperature 5", "temperature must be between 0 and 2, got 5.0"),
    ("/undo", "the conversation has no question yet"), ("/retry", "the conversation has no question yet"),
    ("/save", "needs a file name"), ("/load", "needs a file name"),
    ("/load /nowhere/at/all", "cannot read /nowhere/at/all: no such file"),
    ("/save /nowhere/at/all", "cannot write /nowhere/at/all: there is no folder /nowhere/at"),
    ("/save /dev/full", "cannot write /dev/full: no space left on device"), ("/save /tmp", "it is a folder"),
])  # fmt: skip
def test_an_invalid_command_is_an_error_and_the_chat_continues(line: str, sentence: str) -> None:
    chat, _, errors = run_chat(line, "one")
    assert sentence in errors and texts(chat) == ["one", "echo one"]


def test_a_file_without_a_conversation_is_rejected(tmp_path: Path) -> None:
    for text in ("{}", "[1]", '[{"role": "user"}]', "nonsense"):
        (tmp_path / "a").write_text(text, encoding="utf-8")
        chat, _, errors = run_chat(f"/load {tmp_path / 'a'}")
        assert errors and chat.messages == []


def test_the_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    chat, _, _ = run_chat("/")
    assert capsys.readouterr().out.strip() == HELP
    names = [line.split()[0][1:] for line in HELP.splitlines() if re.match(r"/\w", line)]
    assert names == [*chat._commands, "quit"] and set(ALIASES.values()) <= set(names)
    assert max(map(len, HELP.splitlines())) < 80


def test_every_command_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "talk.json"
    lines = (
        "/system Be\x1b[2J brief.", "one", "/Undo", "/SYSTEM", "/system", "/clear", "/show", "two", f"/save {file}",
        f"/load {file}", "/set system " + "x" * 60, "/set parameter top-k=5", "/set top_k", "/new", "//quit",
        "/bye", "three",
    )  # fmt: skip
    chat, backend, errors = run_chat(*lines)
    assert errors.splitlines() == [
        'the system message is "Be\N{REPLACEMENT CHARACTER}[2J brief."', 'removed the question "one" and its answer',
        'removed the system message "Be\N{REPLACEMENT CHARACTER}[2J brief."', "there is no system message",
        "new conversation, without 0 messages from before", "the conversation is empty", f"saved 2 messages to {file}",
        f"loaded 2 messages from {file}, without 2 messages from before",
        f'the system message is "{"x" * 50} ..."', "top_k is 5; it was the default (the model's, else 0)",
        "top_k is reset to the default (the model's, else 0); it was 5",
        "new conversation with the same system message, without 2 messages from before",
    ]  # fmt: skip
    assert texts(chat) == ["x" * 60, "/quit", "echo /quit"] and capsys.readouterr().out.count("echo") == 3
    quiet = io.StringIO()
    ChatSession(backend, Console(quiet=True, file=quiet), ChatSampling({})).run(iter(["/set seed 1", "/set q 1"]))
    assert quiet.getvalue().startswith("unknown setting 'q'")


def test_the_command_answers_a_quick_question_and_a_piped_conversation() -> None:
    model = ("chairlift:random", "--num-blocks", "128", "--max-tokens", "5", "--temperature", "0")

    def chat(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "chairlift", "chat", *model, *words]
        return run_process(command, modules=TORCH_MODULES, input=stdin, text=True, check=True)

    quick = chat("--quick", "hello", "--stats", "--quiet")
    assert quick.stdout.strip("\n") and "5 output tokens" in quick.stderr
    piped = chat(stdin="hello\n/show\n/quit\n")
    assert "user: hello" in piped.stdout and "/help lists the commands" in piped.stderr


def test_a_quick_question_of_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hello"))
    assert (_read_question("-"), _read_question("why")) == ("hello", "why")


def test_the_saved_file_is_json(tmp_path: Path) -> None:
    run_chat("é", f"/save {tmp_path / 'a'}")
    assert json.loads((tmp_path / "a").read_text(encoding="utf-8"))[0] == {"role": "user", "content": "é"}

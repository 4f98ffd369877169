"""A chat in the terminal: what is remembered, what the commands do, what happens when an answer fails or is ended."""

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chairlift.cli.chat_backends import AnswerStats, ChatFailed, Message
from chairlift.cli.commands.chat import HELP, ChatSession
from chairlift.cli.console import Console


class Echo:
    """Answers with the last question in pieces, and keeps what it was asked."""

    name = "echo"

    def __init__(self) -> None:
        self.asked: list[tuple[list[Message], dict[str, Any]]] = []

    def answer(self, messages: list[Message], options: dict[str, Any], counted: AnswerStats) -> Iterator[str]:
        self.asked.append(([dict(message) for message in messages], dict(options)))
        text = messages[-1]["content"]
        if text == "fail":
            raise ChatFailed("nobody is there")
        yield "you said "
        if text == "stop":
            raise KeyboardInterrupt
        yield text
        counted.output_tokens, counted.seconds, counted.reason = 2, 0.5, "stop"


def chatted(*lines: str, **options: Any) -> tuple[ChatSession, Echo, str]:
    """Run a chat of these lines; returns it, who answered, and what it said on standard error."""
    echo, said = Echo(), io.StringIO()
    chat = ChatSession(echo, Console(file=said), options)
    assert chat.run(iter(lines)) == 0
    return chat, echo, said.getvalue()


def texts(chat: ChatSession) -> list[str]:
    return [message["content"] for message in chat.messages]


def test_the_conversation_is_remembered(capsys: pytest.CaptureFixture[str]) -> None:
    chat, echo, _ = chatted("one", "", "two")
    assert texts(chat) == ["one", "you said one", "two", "you said two"]
    assert [len(messages) for messages, _ in echo.asked] == [1, 3]
    assert capsys.readouterr().out == "you said one\nyou said two\n"


def test_commands_change_what_is_remembered() -> None:
    assert texts(chatted("/system Be brief.", "one", "/new")[0]) == ["Be brief."]
    assert texts(chatted("/system a", "/system b", "one")[0]) == ["b", "one", "you said one"]
    assert texts(chatted("/system a", "/system")[0]) == []
    assert texts(chatted("one", "two", "/undo")[0]) == ["one", "you said one"]
    chat, echo, _ = chatted("one", "/retry")
    assert texts(chat) == ["one", "you said one"] and len(echo.asked) == 2 and echo.asked[0][0] == echo.asked[1][0]


def test_leaving_ends_it() -> None:
    assert chatted("one", "/quit", "two")[1].asked[-1][0][-1]["content"] == "one"


def test_an_answer_that_fails_is_not_part_of_the_conversation() -> None:
    chat, _, said = chatted("one", "fail", "two")
    assert texts(chat) == ["one", "you said one", "two", "you said two"] and "nobody is there" in said


def test_an_answer_that_is_ended_is_kept_as_far_as_it_came() -> None:
    chat, _, said = chatted("stop", "go on")
    assert texts(chat)[:2] == ["stop", "you said "] and "(ended)" in said


def test_options_are_set_shown_and_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    _, echo, said = chatted(
        "/set temperature 0.5", "a", "/set stop x", "/set max-tokens 7", "b", "/set", "/set temperature", "c",
        "/set q 1", "/set temperature hot", seed=3,
    )  # fmt: skip
    assert [options for _, options in echo.asked] == [
        {"seed": 3, "temperature": 0.5}, {"seed": 3, "temperature": 0.5, "stop": ["x"], "max_tokens": 7},
        {"seed": 3, "stop": ["x"], "max_tokens": 7},
    ]  # fmt: skip
    assert '"max_tokens": 7' in capsys.readouterr().out
    assert "there is no option 'q'" in said and "must be a number" in said


def test_what_it_took_is_shown_when_asked_for() -> None:
    assert chatted("one")[2] == ""
    assert chatted("/stats", "one")[2] == "0 tokens in, 2 out in 0.50 s (4.0 tokens/s), stop\n"


def test_a_conversation_is_saved_and_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    chatted("one", f"/save {file}")
    chat, _, _ = chatted(f"/load {file}", "two")
    assert texts(chat) == ["one", "you said one", "two", "you said two"]


@pytest.mark.parametrize(("line", "sentence"), [
    ("/frobnicate", "there is no /frobnicate"),
    ("/undo", "there is no question yet"), ("/retry", "there is no question yet"),
    ("/save", "needs the name"), ("/load", "needs the name"), ("/load /nowhere/at/all", "No such file"),
    ("/save /nowhere/at/all", "No such file"),
])  # fmt: skip
def test_a_command_that_cannot_be_is_told_and_nothing_ends(line: str, sentence: str) -> None:
    chat, _, said = chatted(line, "one")
    assert sentence in said and texts(chat) == ["one", "you said one"]


def test_a_file_that_holds_no_conversation(tmp_path: Path) -> None:
    for text in ("{}", "[1]", '[{"role": "user"}]', "nonsense"):
        (tmp_path / "a").write_text(text, encoding="utf-8")
        chat, _, said = chatted(f"/load {tmp_path / 'a'}")
        assert said and chat.messages == []


def test_the_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    chat, _, _ = chatted("/help")
    assert capsys.readouterr().out.strip() == HELP
    assert {line.split()[0][1:] for line in HELP.splitlines()} == {*chat._commands, "quit"}


def test_the_command_answers_a_quick_question_and_a_piped_conversation() -> None:
    model = ("chairlift:random", "--num-blocks", "128", "--max-tokens", "5", "--temperature", "0")

    def chat(*words: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "chairlift", "chat", *model, *words]
        return subprocess.run(command, input=typed, capture_output=True, text=True, timeout=120, check=True)

    quick = chat("--quick", "hello", "--stats", "--quiet")
    assert quick.stdout.strip("\n") and "5 out" in quick.stderr
    assert chat("--quick", "-", "--quiet", typed="hello").stdout == quick.stdout
    piped = chat(typed="hello\n/show\n/quit\n")
    assert "user: hello" in piped.stdout and "/help tells" in piped.stderr


def test_the_saved_file_is_json(tmp_path: Path) -> None:
    chatted("é", f"/save {tmp_path / 'a'}")
    assert json.loads((tmp_path / "a").read_text(encoding="utf-8"))[0] == {"role": "user", "content": "é"}

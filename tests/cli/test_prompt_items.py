"""PromptItem: prompts of the command line and of JSONL files, and invalid lines."""

import io
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from chairlift.cli.prompt_items import read_prompt, read_prompts, stdin_has_input
from chairlift.core.errors import InvalidRequest


def read(folder: Path, *lines: Any, sampling: dict[str, Any] | None = None, **more: bool) -> Any:
    path = folder / "p.jsonl"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines))
    return read_prompts(str(path), sampling or {}, **{"chat": False, **more})


def test_lines_become_items_in_order(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}]
    items = read(tmp_path, {"prompt": "a"}, b"", {"prompt": [1, 2], "id": "x"}, b"  ", {"messages": messages, "id": 9})
    assert [item.input for item in items] == [("prompt", "a"), ("prompt", [1, 2]), ("messages", messages)]
    assert [item.item_id for item in items] == [1, "x", 9]
    assert items[1].location.endswith("p.jsonl line 3")


def test_a_line_overrides_the_sampling_settings_of_the_command_line(tmp_path: Path) -> None:
    line = {"prompt": "a", "temperature": 0.5, "stop": "x", "logit_bias": {"5": 1}, "max_tokens": None}
    (item,) = read(tmp_path, line, sampling={"temperature": 1.5, "seed": 3, "max_tokens": 8})
    params = item.params
    assert (params.temperature, params.seed, params.stop, params.max_tokens) == (0.5, 3, ("x",), None)
    assert dict(params.logit_bias) == {5: 1.0}


def test_a_byte_order_mark_and_crlf_are_ignored(tmp_path: Path) -> None:
    items = read(tmp_path, b'\xef\xbb\xbf{"prompt": "a"}\r', b'{"prompt": "b"}\r')
    assert [item.input[1] for item in items] == ["a", "b"]


def test_chat_turns_text_into_a_message(tmp_path: Path) -> None:
    expected = ("messages", [{"role": "user", "content": "a"}])
    assert read(tmp_path, {"prompt": "a"}, chat=True)[0].input == expected
    assert read_prompt("a", {}, chat=True).input == expected


def test_tools_need_messages_or_a_text_that_becomes_one(tmp_path: Path) -> None:
    messages, tools = [{"role": "user", "content": "a"}], [{"type": "function", "function": {"name": "f"}}]
    with_tools, without = read(tmp_path, {"messages": messages, "tools": tools}, {"messages": messages})
    assert with_tools.tools == tools and without.tools is None
    (text,) = read(tmp_path, {"prompt": "a", "tools": tools}, chat=True)
    assert (text.input, text.tools) == (("messages", messages), tools)
    for line, message in (
        ({"prompt": "a", "tools": tools}, "tools need messages, or --chat, which turns a prompt into a message"),
        ({"messages": messages, "tools": "f"}, "tools must be a list of tools, got str"),
        ({"messages": messages, "tools": [{}]}, "tools[0].function.name must be a string"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            read(tmp_path, line)
        assert caught.value.message.endswith(f"p.jsonl line 1: {message}")


def test_token_ids_are_rejected_in_a_chat_unless_they_are_allowed(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="--chat needs a prompt of text or messages, got token ids"):
        read(tmp_path, {"prompt": [1, 2]}, chat=True)
    text, ids = read(tmp_path, {"prompt": "a"}, {"prompt": [1, 2]}, chat=True, allow_token_ids=True)
    assert text.input[0] == "messages" and ids.input == ("prompt", [1, 2])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"prompt": "x', "is not JSON: Unterminated string starting at (column 12)"),
        (b"hello", "is not JSON: Expecting value (column 1)"),
        (b"[" * 100_000, "is not valid JSON: maximum recursion depth"),
        (b'{"prompt": "\xff"}', "is not UTF-8"),
        (b'["x"]', "must be an object such as {\"prompt\": \"...\"}, got a list"),
        (b"null", "got null"),
        ({}, 'needs either "prompt" or "messages"'),
        ({"prompt": "a", "messages": []}, 'needs either "prompt" or "messages"'),
        ({"prompt": 5}, "prompt must be text or a list of token ids, and must not be empty"),
        ({"prompt": ""}, "must not be empty"),
        ({"prompt": []}, "must not be empty"),
        ({"prompt": [1, 2.5]}, "token ids"),
        ({"prompt": [True]}, "token ids"),
        ({"messages": []}, "messages must be a list with at least one object"),
        ({"messages": ["hi"]}, "messages must be a list with"),
        ({"messages": {"role": "user"}}, "messages must be a list with"),
        ({"prompt": "a", "temprature": 1}, "unknown field 'temprature'; did you mean 'temperature'?"),
        ({"prompt": "a", "zzzzz": 1}, "unknown field 'zzzzz'; available are id, prompt, messages, tools, n, best_of,"),
        ({"prompt": "a", "temperature": "1"}, "temperature must be a number, got str"),
        ({"prompt": "a", "temperature": 5}, "temperature must be between 0 and 2, got 5"),
        (b'{"prompt": "a", "temperature": NaN}', "temperature must be between 0 and 2, got nan"),
        (b'{"prompt": "a", "top_p": 1e999}', "top_p must be"),
        ({"prompt": "a", "max_tokens": 1.5}, "max_tokens must be an integer, got float"),
        ({"prompt": "a", "ignore_eos": 1}, "ignore_eos must be true or false"),
        ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias must be an integer"),
        ({"prompt": "a", "logit_bias": {"9" * 5000: 1}}, "logit_bias: Exceeds the limit"),
        ({"prompt": "a", "id": 1.5}, "id must be a string or an integer, got a number"),
        ({"prompt": "a", "id": None}, "id must be a string or an integer, got null"),
        ({"prompt": "a", "id": 3}, "id 3 is already in line 3"),
    ],
)  # fmt: skip
def test_an_invalid_line_17_is_an_error_with_its_number(tmp_path: Path, line: Any, message: str) -> None:
    good = [{"prompt": f"prompt {number}"} for number in range(16)]
    with pytest.raises(InvalidRequest) as caught:
        read(tmp_path, *good, line, {"prompt": "after"})
    assert f"p.jsonl line 17: {message}" in caught.value.message or (
        "p.jsonl line 17: " in caught.value.message and message in caught.value.message
    )


def test_chat_needs_text(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="line 1: --chat needs a prompt of text or messages, got token ids"):
        read(tmp_path, {"prompt": [1]}, chat=True)


@pytest.mark.parametrize("content", [b"", b"\n \n\n"])
def test_a_file_without_prompts_is_rejected(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"p\.jsonl has no prompts"):
        read(tmp_path, content)


def test_a_file_that_cannot_be_read_is_rejected(tmp_path: Path) -> None:
    for path, message in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(InvalidRequest, match=f"cannot read {path}: {message}"):
            read_prompts(str(path), {}, chat=False)


def test_invalid_sampling_settings_are_rejected_before_the_file_is_read() -> None:
    with pytest.raises(InvalidRequest, match="temperature"):
        read_prompts("/no/such/file", {"temperature": 9.0}, chat=False)


class _Stdin:
    def __init__(self, content: bytes) -> None:
        self.buffer = io.BytesIO(content)


def test_a_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", _Stdin(b"two\nlines\n"))
    assert read_prompt("-", {}, chat=False).input == ("prompt", "two\nlines")
    monkeypatch.setattr("sys.stdin", _Stdin(b"\xef\xbb\xbfone\r\n"))
    assert read_prompt("-", {}, chat=False).input == ("prompt", "one")
    monkeypatch.setattr("sys.stdin", _Stdin(b'{"prompt": "a"}\n{"prompt": 5}\n'))
    with pytest.raises(InvalidRequest, match="standard input line 2: prompt"):
        read_prompts("-", {}, chat=False)
    for content, message in ((b"", "the prompt is empty"), (b"a\xff", "not UTF-8: .* at byte 1;")):
        monkeypatch.setattr("sys.stdin", _Stdin(content))
        with pytest.raises(InvalidRequest, match=message):
            read_prompt("-", {}, chat=False)


def test_only_a_pipe_a_socket_or_a_file_is_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    terminal, device = os.openpty()
    one, other = socket.socketpair()
    (tmp_path / "p.txt").write_text("hi")
    try:
        with open(os.devnull) as null, open(tmp_path / "p.txt") as file:
            for descriptor, expected in (
                (reader, True), (one.fileno(), True), (file.fileno(), True), (device, False), (null.fileno(), False)
            ):  # fmt: skip
                with open(descriptor, closefd=False) as stdin:
                    monkeypatch.setattr("sys.stdin", stdin)
                    assert stdin_has_input() is expected
        monkeypatch.setattr("sys.stdin", io.StringIO("no descriptor"))
        assert not stdin_has_input()
    finally:
        for descriptor in (reader, writer, terminal, device):
            os.close(descriptor)
        one.close()
        other.close()

"""AnswerLines: one line for each part, a call at its end, and a last line with `done` or an error."""

import json
from typing import Any

import pytest

from chairlift.protocol.ollama.answer_writer import AnswerWriter
from chairlift.protocol.ollama.line_stream import AnswerLines
from chairlift.protocol.ollama.request import OllamaRequest
from chairlift.protocol.translation.base import FieldNames


def lines(*chunks: dict[str, Any], is_chat: bool = True, first_token_at: float | None = None) -> list[dict[str, Any]]:
    request = OllamaRequest(body={}, ignored=(), names=FieldNames(), model="m")
    stream = AnswerLines(AnswerWriter(request, is_chat=is_chat), lambda: first_token_at)
    data = b"".join([*map(stream.chunk, chunks), stream.end()])
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


def chunk(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def call(index: int, arguments: str, name: str | None = None) -> dict[str, Any]:
    return {"index": index, "function": {"arguments": arguments, **({} if name is None else {"name": name})}}


USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


def test_a_message() -> None:
    parts = lines(
        chunk(role="assistant", content=""), chunk(reasoning_content="Hm."), chunk(content="Yes"), chunk("stop"), USAGE
    )
    assert [part.get("message") for part in parts] == [
        {"role": "assistant", "content": "", "thinking": "Hm."}, {"role": "assistant", "content": "Yes"},
        {"role": "assistant", "content": ""},
    ]  # fmt: skip
    assert [part["done"] for part in parts] == [False, False, True] and parts[-1]["done_reason"] == "stop"
    last = parts[-1]
    assert (last["prompt_eval_count"], last["eval_count"], last["load_duration"]) == (3, 2, 0)
    assert last["total_duration"] >= last["prompt_eval_duration"] and last["eval_duration"] >= 0
    assert all("eval_count" not in part and part["model"] == "m" for part in parts[:-1])


def test_a_text() -> None:
    texts = [{"choices": [{"index": 0, "text": text, "finish_reason": None}]} for text in ("a", "", "b")]
    parts = lines(*texts, {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}, is_chat=False)
    assert [part["response"] for part in parts] == ["a", "b", ""] and parts[-1]["done_reason"] == "length"


def test_calls_come_whole() -> None:
    parts = lines(
        chunk(tool_calls=[call(0, "", "f")]), chunk(tool_calls=[call(0, '{"a": ')]), chunk(tool_calls=[call(0, "1}")]),
        chunk(tool_calls=[call(1, "{}", "g")]), chunk("tool_calls"),
    )  # fmt: skip
    assert [part["message"].get("tool_calls") for part in parts] == [
        [{"function": {"name": "f", "arguments": {"a": 1}}}], [{"function": {"name": "g", "arguments": {}}}], None,
    ]  # fmt: skip
    assert parts[-1]["done_reason"] == "stop"
    merged = lines(chunk("tool_calls", content="I look.", tool_calls=[call(0, "{}", "f"), call(1, "{}", "g")]))
    assert [len(part["message"].get("tool_calls", ())) for part in merged] == [1, 1, 0]


def test_a_call_that_is_cut_off_is_left_out() -> None:
    parts = lines(chunk(tool_calls=[call(0, '{"a": ', "f")]), chunk("length"))
    assert len(parts) == 1 and parts[0]["done_reason"] == "length"


def test_logprobs_of_a_token_without_text_are_kept() -> None:
    token = {"token": "<x>", "logprob": -0.5, "bytes": [60], "top_logprobs": []}
    with_logprobs = chunk(role="assistant", content="")
    with_logprobs["choices"][0]["logprobs"] = {"content": [token]}
    parts = lines(with_logprobs, chunk("stop"))
    assert parts[0]["logprobs"] == [{"token": "<x>", "logprob": -0.5, "bytes": [60]}] and len(parts) == 2


def test_an_error_is_the_last_line() -> None:
    request = OllamaRequest(body={}, ignored=(), names=FieldNames(), model="m")
    stream = AnswerLines(AnswerWriter(request, is_chat=True))
    stream.chunk(chunk(content="a"))
    assert stream.error({"message": "the engine stopped", "code": "x"}) == b'{"error":"the engine stopped"}\n'


def test_the_first_token_is_the_one_that_the_server_has_seen() -> None:
    assert lines(chunk(content="a"), first_token_at=1.0)[-1]["prompt_eval_duration"] == 0
    assert "eval_duration" not in lines()[-1]  # nothing came


@pytest.mark.parametrize("is_chat", [True, False])
def test_a_silent_stream_has_lines_without_text(is_chat: bool) -> None:
    request = OllamaRequest(body={}, ignored=(), names=FieldNames(), model="m")
    stream = AnswerLines(AnswerWriter(request, is_chat=is_chat), lambda: None)
    line = json.loads(stream.keep_alive(b": waiting\n\n"))
    assert not line["done"] and line["model"] == "m" and line["created_at"]
    assert (line["message"] == {"role": "assistant", "content": ""}) if is_chat else (line["response"] == "")
    assert "eval_duration" not in json.loads(stream.end()), "it is no first token"

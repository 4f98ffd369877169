"""AnswerWriter: whole responses, parts and the last one, strictly as the client's types have them."""

from typing import Any

import ollama
import pytest

from chairlift.protocol.ollama.answer_writer import AnswerWriter, timestamp, tool_call
from chairlift.protocol.ollama.request import OllamaRequest
from chairlift.protocol.translation.base import FieldNames
from support_sdk_schemas import checked_closely
from support_shares import for_each

USAGE = {"prompt_tokens": 3, "completion_tokens": 2}


def writer(*, is_chat: bool = True, **fields: Any) -> AnswerWriter:
    values: dict[str, Any] = {"body": {}, "ignored": (), "names": FieldNames(), "model": "m", **fields}
    return AnswerWriter(OllamaRequest(**values), is_chat=is_chat)


def completion(finish_reason: str = "stop", logprobs: Any = None, **message: Any) -> dict[str, Any]:
    choice = {"finish_reason": finish_reason, "message": {"content": "Yes", **message}, "logprobs": logprobs}
    return {"choices": [choice], "usage": USAGE}


def test_a_whole_message() -> None:
    calls = [{"id": "x", "function": {"name": "f", "arguments": '{"a": 1}'}}]
    body = writer().whole(completion("tool_calls", reasoning_content="Hm.", tool_calls=calls, content=None), 0.0)
    response = checked_closely(ollama.ChatResponse, body)
    assert body["message"] == {
        "role": "assistant", "content": "", "thinking": "Hm.",
        "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}],
    }  # fmt: skip
    assert (response.done, response.done_reason, response.prompt_eval_count, response.eval_count) == (
        True,
        "stop",
        3,
        2,
    )
    assert response.load_duration == 0 and response.prompt_eval_duration == 0  # the first token came before the start
    assert "tool_calls" not in writer().whole(completion(), None)["message"]


def test_a_whole_text() -> None:
    body = writer(is_chat=False).whole(completion("length", reasoning_content="Hm."), None)
    response = checked_closely(ollama.GenerateResponse, body)
    assert (response.response, response.thinking, response.done_reason) == ("Yes", "Hm.", "length")
    assert "eval_duration" not in body and response.total_duration is not None  # no first token is known
    choice = {"finish_reason": "stop", "text": " yes", "logprobs": None}
    assert writer(is_chat=False).whole({"choices": [choice]}, None)["response"] == " yes"


def test_durations_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((100.0, 103.0))
    monkeypatch.setattr("chairlift.protocol.ollama.answer_writer.time.monotonic", lambda: next(times))
    body = writer().whole(completion(), 101.0)
    assert (body["total_duration"], body["prompt_eval_duration"], body["eval_duration"]) == (
        3 * 10**9,
        10**9,
        2 * 10**9,
    )


def test_a_request_without_a_text() -> None:
    body = writer(load_reason="load").loaded("served")
    assert checked_closely(ollama.ChatResponse, body).done_reason == "load" and body["done"] is True
    assert (
        checked_closely(ollama.GenerateResponse, writer(is_chat=False, load_reason="unload").loaded("served")).response
        == ""
    )


@for_each(("name", "expected"), [("", "served"), ("asked:latest", "asked:latest")])
def test_the_model_is_that_of_the_request_or_the_one_that_answers(name: str, expected: str) -> None:
    response = {"model": "served", "choices": [{"finish_reason": "stop", "message": {"content": "Yes"}}]}
    assert writer(model=name).whole(response, None)["model"] == expected
    assert writer(model=name, load_reason="load").loaded("served")["model"] == expected


def test_logprobs_of_a_message() -> None:
    token = {"token": "a", "logprob": -0.5, "bytes": [97]}
    logprobs = {"content": [{**token, "top_logprobs": [token, {"token": "?", "logprob": -2.0, "bytes": None}]}]}
    assert writer().logprobs(logprobs) == [token] and writer().logprobs(None) == [] == writer().logprobs(
        {"content": None}
    )
    (found,) = writer(top_logprobs=2).logprobs(logprobs)
    assert found == {**token, "top_logprobs": [token, {"token": "?", "logprob": -2.0}]}
    body = writer(top_logprobs=2).whole(completion(logprobs=logprobs), None)
    assert checked_closely(ollama.ChatResponse, body, frozenset({"bytes"})).logprobs is not None


def test_logprobs_of_a_text() -> None:
    logprobs = {"tokens": ["a", "b"], "token_logprobs": [-0.5, -3.0], "text_offset": [0, 1],
                "top_logprobs": [{"a": -0.5, "x": -1.0}, {"b": -3.0, "x": -0.1, "y": -2.0}]}  # fmt: skip
    assert writer().logprobs(logprobs) == [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -3.0}]
    tops = [token["top_logprobs"] for token in writer(top_logprobs=2).logprobs(logprobs)]
    assert tops[1] == [{"token": "x", "logprob": -0.1}, {"token": "y", "logprob": -2.0}]
    assert [top["token"] for top in tops[0]] == ["a", "x"]


@for_each(("arguments", "expected"), [
    ('{"a": 1}', {"a": 1}), ("", {}), (None, {}), ('{"a": ', None), ("[]", None), ("7", None),
])  # fmt: skip
def test_a_call_that_was_cut_off_is_none(arguments: Any, expected: Any) -> None:
    call = tool_call({"name": "f", "arguments": arguments})
    assert call == (None if expected is None else {"function": {"name": "f", "arguments": expected}})


def test_timestamps() -> None:
    assert timestamp().endswith("Z") and "T" in timestamp() and len(timestamp()) == len("2026-11-27T07:47:42.728752Z")

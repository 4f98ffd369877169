"""ResponseWriter: response objects against the published type."""

from typing import Any

import jsonschema
import pytest
from openai.types.responses import Response

from chairlift.protocol.responses.request import read_response_request
from chairlift.protocol.responses.response_schema import RESPONSE
from chairlift.protocol.responses.response_store import ResponseStore
from chairlift.protocol.responses.response_writer import (
    ResponseWriter,
    error_object,
    text_logprobs,
    usage_object,
    whole_logprobs,
)
from support_sdk_schemas import checked

USAGE = {"prompt_tokens": 3, "completion_tokens": 10, "total_tokens": 13}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def whole(message: dict[str, Any], finish_reason: str = "stop", logprobs: Any = None, **fields: Any) -> dict[str, Any]:
    request = read_response_request({"model": "m", "input": "Hi", **fields}, ResponseStore(10**6), "")
    choice = {"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": logprobs}
    result = ResponseWriter(request, "resp_a", "m", 7).whole({"choices": [choice], "usage": USAGE})
    checked(Response, result, frozenset({"store"}))
    jsonschema.validate(result, RESPONSE)
    return result


def test_items_in_order() -> None:
    result = whole({"content": "Yes", "reasoning_content": "Hm.", "tool_calls": [CALL]}, "tool_calls")
    assert [item["type"] for item in result["output"]] == ["reasoning", "message", "function_call"]
    assert [item["id"] for item in result["output"]] == ["rs_a_0", "msg_a_1", "fc_a_2"]
    assert result["status"] == "completed" and result["created_at"] == 7 and result["completed_at"] >= 7


def test_a_call_needs_no_message_and_an_empty_answer_has_one() -> None:
    assert [item["type"] for item in whole({"content": None, "tool_calls": [CALL]})["output"]] == ["function_call"]
    (message,) = whole({"content": ""})["output"]
    assert message["content"][0]["text"] == ""


def test_calls_have_the_names_and_namespaces_of_the_request() -> None:
    tools = [
        {"type": "custom", "name": "apply_patch"},
        {"type": "namespace", "name": "mcp", "description": "d", "tools": [{"type": "function", "name": "f"}]},
    ]  # fmt: skip
    custom = {"id": "call_2", "type": "custom", "custom": {"name": "apply_patch", "input": "x"}}
    function, patch = whole({"content": None, "tool_calls": [CALL, custom]}, "tool_calls", tools=tools)["output"]
    assert (function["name"], function["namespace"], function["arguments"]) == ("f", "mcp", "{}")
    assert (patch["type"], patch["name"], patch["input"]) == ("custom_tool_call", "apply_patch", "x")
    assert patch["id"] == "ctc_a_1" and "namespace" not in patch


def test_what_is_cut_off_is_incomplete() -> None:
    result = whole({"content": "Yes", "reasoning_content": "Hm."}, "length")
    assert result["status"] == "incomplete" and result["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in result["output"]] == ["completed", "incomplete"]


def test_fields_of_the_request_are_repeated() -> None:
    tool = {"type": "function", "name": "f"}
    result = whole(
        {"content": "Yes"}, tools=[tool], tool_choice="required", metadata={"a": "b"}, max_output_tokens=5,
        text={"format": {"type": "json_object"}}, reasoning={"effort": "low"}, parallel_tool_calls=False, user="u",
    )  # fmt: skip
    assert result["tools"] == [{**tool, "parameters": None, "strict": None}] and result["tool_choice"] == "required"
    assert result["metadata"] == {"a": "b"} and result["max_output_tokens"] == 5 and result["user"] == "u"
    assert result["text"] == {"format": {"type": "json_object"}} and result["reasoning"]["effort"] == "low"
    assert result["parallel_tool_calls"] is False


def test_logprobs() -> None:
    top = {"token": "Y", "logprob": -1.0, "bytes": [89]}
    given = {"content": [{"token": "Yes", "logprob": -0.5, "bytes": None, "top_logprobs": [top]}], "refusal": None}
    part = whole({"content": "Yes"}, logprobs=given)["output"][0]["content"][0]
    assert part["logprobs"] == [{"token": "Yes", "logprob": -0.5, "bytes": [], "top_logprobs": [top]}]
    assert whole_logprobs(None) == whole_logprobs({"content": None}) == []


def test_tokens_of_reasoning_are_its_share_of_the_characters() -> None:
    output = whole({"content": "abc", "reasoning_content": "abcdef", "tool_calls": [CALL]})["output"]
    assert usage_object(USAGE, output)["output_tokens_details"] == {"reasoning_tokens": round(10 * 6 / 11)}
    assert usage_object(USAGE, [])["output_tokens_details"] == {"reasoning_tokens": 0}


@pytest.mark.parametrize(("kind", "code"), [
    ("server_error", "server_error"), ("rate_limit_error", "rate_limit_exceeded"),
    ("invalid_request_error", "invalid_prompt"), (None, "server_error"),
])  # fmt: skip
def test_errors(kind: str | None, code: str) -> None:
    assert error_object({"type": kind, "message": "no"}) == {"code": code, "message": "no"}


def test_reasoning_that_is_cut_off_has_no_message_behind_it() -> None:
    (reasoning,) = whole({"content": "", "reasoning_content": "Hm"}, "length")["output"]
    assert reasoning["type"] == "reasoning" and reasoning["status"] == "incomplete"
    filtered = whole({"content": "Yes"}, "content_filter")
    assert filtered["status"] == "incomplete" and filtered["incomplete_details"] == {"reason": "content_filter"}


def test_logprobs_are_those_of_the_text_without_reasoning_and_end() -> None:
    tokens = [{"token": text, "logprob": -1.0, "bytes": list(text.encode()), "top_logprobs": []}
              for text in ("<think>", "Yes", "</think>", "Yes", ", é", "", "<end>")]  # fmt: skip
    message = {"content": "Yes, é", "reasoning_content": "Yes"}
    part = whole(message, logprobs={"content": tokens})["output"][1]["content"][0]
    assert part["logprobs"] == tokens[3:5]
    assert text_logprobs(tokens, "") == []

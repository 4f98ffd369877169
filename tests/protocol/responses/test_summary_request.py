"""summary_body, text_of, cut_off_error: what the model is asked for a summary, and what is read of its answer."""

from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.protocol.responses.compaction_item import compaction_item
from chairlift.protocol.responses.request import ResponseRequest, read_response_request
from chairlift.protocol.responses.response_store import ResponseStore
from chairlift.protocol.responses.summary_request import SUMMARY_REQUEST, cut_off_error, summary_body, text_of
from support_shares import for_each


def read(**body: Any) -> ResponseRequest:
    return read_response_request({"model": "m", **body}, ResponseStore(0), "")


def test_the_body_has_what_applies_to_a_summary() -> None:
    request = read(
        input="Hi", tools=[{"type": "function", "name": "f"}], tool_choice="required",
        text={"format": {"type": "json_object"}}, regex="a", top_logprobs=1, stop=["x"], seed=3, max_output_tokens=9,
        reasoning={"effort": "low"}, stream=True,
    )  # fmt: skip
    chat = request.chat
    assert {"tools", "tool_choice", "response_format", "regex", "logprobs", "stop"} <= chat.keys()
    assert summary_body(request) == {
        "model": "m", "messages": [{"role": "user", "content": "Hi"}, {"role": "user", "content": SUMMARY_REQUEST}],
        "seed": 3, "max_completion_tokens": 9, "reasoning_effort": "low", "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    assert len(chat["messages"]) == 1


@for_each("items", [
    "", [], [{"role": "user", "content": ""}], [{"role": "assistant", "content": None}],
    [{"type": "reasoning", "summary": []}], [{"type": "compaction", "encrypted_content": "gAAAAABo"}],
    [{"type": "web_search_call"}], [{"type": "additional_tools", "tools": []}],
])  # fmt: skip
def test_what_has_no_text_and_no_call_has_no_summary(items: Any) -> None:
    for instructions in (None, "Be brief."):
        with pytest.raises(InvalidRequest, match="input has nothing to summarize; send the items, or previous"):
            summary_body(read(input=items, instructions=instructions))


@for_each("items", [
    "Hi", [{"role": "developer", "content": "a"}],
    [{"type": "function_call", "call_id": "c", "name": "f", "arguments": ""}],
    [{"type": "reasoning", "summary": [{"text": "hm"}]}], [compaction_item("cmp_1", "S")],
])  # fmt: skip
def test_a_text_or_a_call_has_a_summary(items: Any) -> None:
    assert summary_body(read(input=items))["messages"][-1] == {"role": "user", "content": SUMMARY_REQUEST}


def test_the_text_is_that_of_messages() -> None:
    parts = [{"text": " a"}, {"text": "b \n"}]
    assert text_of([{"type": "reasoning", "content": [{"text": "x"}]}, {"type": "message", "content": parts}]) == "ab"
    assert text_of([{"type": "function_call", "arguments": "{}"}]) == ""


def test_the_error_names_the_limit_that_has_cut_it_off() -> None:
    assert cut_off_error({"max_completion_tokens": 3}, 3).details["param"] == "max_output_tokens"
    assert cut_off_error({}, 3).details["param"] == "input"

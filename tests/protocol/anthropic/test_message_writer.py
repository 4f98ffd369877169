"""MessageWriter: the message object has what its published type has, and nothing else."""

from typing import Any

import pytest
from anthropic.types import Message, Usage

from chairlift.protocol.anthropic.message_writer import SIGNATURE, MessageWriter, call_input, usage_object
from support_sdk_schemas import checked
from support_shares import for_each

USAGE = {"prompt_tokens": 30, "completion_tokens": 8, "prompt_tokens_details": {"cached_tokens": 16}}
WRITER = MessageWriter("msg_1", "m", ("END", "X"))


def whole(finish_reason: str = "stop", **message: Any) -> Message:
    choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}, "finish_reason": finish_reason}
    return checked(Message, WRITER.whole({"model": "m", "choices": [choice], "usage": USAGE}))


def test_the_blocks_of_a_message() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    message = whole("tool_calls", content="Yes", reasoning_content="Hm", tool_calls=[call])
    assert [block.model_dump(exclude_none=True) for block in message.content] == [
        {"type": "thinking", "thinking": "Hm", "signature": SIGNATURE},
        {"type": "text", "text": "Yes"},
        {"type": "tool_use", "id": "call_1", "name": "f", "input": {"a": 1}},
    ]
    assert (message.id, message.model, message.stop_reason) == ("msg_1", "m", "tool_use")
    assert whole(content="").content == [] == whole().content


def test_token_counts_are_those_without_and_with_the_cache() -> None:
    usage = checked(Usage, usage_object(USAGE))
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (14, 16, 8)
    assert usage.cache_creation_input_tokens == 0
    assert (
        usage_object({"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": None})["input_tokens"] == 3
    )


@for_each(("choice", "stop_reason", "stop_sequence"), [
    ({"finish_reason": "stop"}, "end_turn", None),
    ({"finish_reason": "stop", "stop_reason": "END"}, "stop_sequence", "END"),
    ({"finish_reason": "stop", "stop_reason": "other"}, "end_turn", None),
    ({"finish_reason": "stop", "stop_reason": 7}, "end_turn", None),
    ({"finish_reason": "tool_calls", "stop_reason": "END"}, "tool_use", None),
    ({"finish_reason": "length"}, "max_tokens", None),
    ({"finish_reason": "abort"}, "max_tokens", None),
    ({"finish_reason": "content_filter"}, "refusal", None),
    ({}, "end_turn", None),
])  # fmt: skip
def test_why_a_message_has_ended(choice: dict[str, Any], stop_reason: str, stop_sequence: str | None) -> None:
    assert WRITER.ending(choice) == {"stop_reason": stop_reason, "stop_sequence": stop_sequence}


@pytest.mark.parametrize(("arguments", "expected"), [
    ('{"a": [1]}', {"a": [1]}), ("", {}), ('{"a": ', {}), ("[1]", {}), ('{"a": 1e400}', {}),
])  # fmt: skip
def test_arguments_are_an_object(arguments: str, expected: dict[str, Any]) -> None:
    assert call_input(arguments) == expected

"""with_written_calls: the text of calls that the server writes is read back by the parser of the format."""

import json
from typing import Any

import pytest

from chairlift.text.chat_messages import ChatMessage, ToolCall
from chairlift.text.marker_stand_ins import without_stand_ins
from chairlift.text.tool_formats.base import ToolFormat
from chairlift.text.tool_formats.detect import TOOL_FORMATS
from chairlift.text.tool_formats.harmony import HARMONY
from chairlift.text.tool_formats.json_calls import GRANITE, HERMES, MISTRAL_ARGS, MISTRAL_IDS
from chairlift.text.tool_formats.pythonic import PYTHONIC_MARKED
from chairlift.text.written_calls import can_write_calls, with_written_calls
from support_tool_formats import read

SCHEMAS: dict[str, Any] = {
    "f": {"type": "object", "properties": {"x": {"type": "integer"}, "s": {"type": "string"}, "z": {"type": "array"}}},
    "g": {"type": "object", "properties": {}},
}
ARGUMENTS = {"x": -1, "s": 'é "b"}\n[', "z": [{"k": None}, True]}
CALLS = (ToolCall("abcdefghi", "f", ARGUMENTS), ToolCall("123456789", "g", {}))
FORMATS = [each for each in TOOL_FORMATS.values() if can_write_calls(each)]
FORMATS += [MISTRAL_ARGS, MISTRAL_IDS, *PYTHONIC_MARKED.values()]


def written(tool_format: ToolFormat, *messages: ChatMessage, writes_results: bool = True) -> list[ChatMessage]:
    return with_written_calls(messages, tool_format, writes_results=writes_results)


@pytest.mark.parametrize("tool_format", FORMATS, ids=lambda each: each.name)
def test_calls_are_read_back(tool_format: ToolFormat) -> None:
    [message] = written(tool_format, ChatMessage(role="assistant", calls=CALLS))
    assert message.calls == ()
    result = read(tool_format, without_stand_ins(message.content), schemas=SCHEMAS)
    calls = [(name, json.loads(arguments)) for name, arguments in result.calls]
    assert calls == [("f", ARGUMENTS), ("g", {})] and not result.text.strip()


def test_formats_without_such_a_notation() -> None:
    names = {name for name, each in TOOL_FORMATS.items() if not can_write_calls(each)}
    assert names == {"harmony", "tool-code", "deepseek-v3.2", "generic"} and not can_write_calls(HARMONY)


def test_calls_stand_behind_the_text_of_their_answer_and_reasoning_stays() -> None:
    message = ChatMessage(role="assistant", content="So.", reasoning="hm", calls=CALLS[1:])
    [answer] = written(HERMES, message)
    expected = 'So.\n<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
    assert without_stand_ins(answer.content) == expected and answer.reasoning == "hm"
    other = ChatMessage(role="user", content="<tool_call>")
    assert written(HERMES, other) == [other]


def test_json_has_a_space_behind_its_signs_as_models_write_it() -> None:
    [message] = written(GRANITE, ChatMessage(role="assistant", calls=CALLS[1:]))
    assert without_stand_ins(message.content) == '<|tool_call|>[{"name": "g", "arguments": {}}]'


def test_arguments_that_were_cut_off_are_text_within_an_object() -> None:
    call = ToolCall("a", "f", '{"x": 1')
    [message] = written(HERMES, ChatMessage(role="assistant", calls=(call,)))
    [(_, arguments)] = read(HERMES, without_stand_ins(message.content)).calls
    assert json.loads(arguments) == {"arguments": '{"x": 1'}


def test_results_that_a_template_does_not_write_are_text_of_the_user() -> None:
    messages = (
        ChatMessage(role="assistant", calls=CALLS[1:]),
        ChatMessage(role="tool", content="5", call_id="123456789"),
    )
    assert written(HERMES, *messages)[1] == messages[1]
    [_, result] = written(HERMES, *messages, writes_results=False)
    assert result.role == "user" and json.loads(result.content)["tool_results"][0]["content"] == "5"

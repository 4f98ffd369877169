"""ChatDeltaBuilder: the joined deltas equal the message, wherever the text is cut."""

import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.core.engine_output import FinishReason
from chairlift.server.openai.chat_delta import ChatDeltaBuilder, Delta, merged_delta
from chairlift.text.custom_tool_calls import CustomCallParser
from chairlift.text.reasoning_formats import REASONING_FORMATS, THINK_TAGS
from chairlift.text.reasoning_parser import ReasoningParser
from chairlift.text.tool_formats.base import ToolFormat
from chairlift.text.tool_formats.gemma import GEMMA4
from chairlift.text.tool_formats.harmony import HARMONY
from chairlift.text.tool_formats.json_calls import HERMES, LLAMA3, MISTRAL
from support_shares import for_each

CALL_F = '{"name": "f", "arguments": {"x": 1}}'
CALL_G = '{"name": "g", "arguments": {"y": "}<"}}'


def delta_builder(
    tool_format: ToolFormat | None = None, is_in_reasoning: bool | None = None, *, allows_parallel_calls: bool = True
) -> ChatDeltaBuilder:
    """Make a builder.

    `is_in_reasoning` is None without reasoning, else whether the prompt has started it.
    """
    calls = None if tool_format is None else tool_format.make_parser({})
    return ChatDeltaBuilder(
        calls,
        None if is_in_reasoning is None else ReasoningParser(THINK_TAGS, is_open=is_in_reasoning),
        allows_parallel_calls=allows_parallel_calls,
    )


def deltas_of(builder: ChatDeltaBuilder, parts: list[str]) -> list[Delta]:
    *first, last = parts
    return [*(delta for part in first for delta in builder.push(part)), *builder.finish(last)]


def join_deltas(deltas: list[Delta]) -> dict[str, Any]:
    """Join deltas to a message as a client does, without the ids of calls."""
    result: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for delta in deltas:
        assert len(delta) == 1, "a delta has one field"
        ((name, value),) = delta.items()
        if name != "tool_calls":
            assert isinstance(value, str) and value, "a delta is not empty"
            result[name] += value
            continue
        (call,) = value
        if "id" in call:
            assert call["index"] == len(result["tool_calls"]) and call["type"] == "function"
            assert re.fullmatch(r"call_[0-9a-f]{24}", call["id"]) and call["function"]["arguments"] == ""
            result["tool_calls"].append(dict(call["function"]))
        else:
            assert set(call) == {"index", "function"} and set(call["function"]) == {"arguments"}
            result["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
    return result


def comparable(message: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a message without its role and ids."""
    assert message["role"] == "assistant" and message["refusal"] is None
    calls = message.get("tool_calls", [])
    assert all(set(call) == {"id", "type", "function"} for call in calls)
    return {
        "content": message["content"] or "",
        "reasoning_content": message.get("reasoning_content", ""),
        "tool_calls": [call["function"] for call in calls],
    }


PARTS = st.sampled_from(
    ["<tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "</tool_call>", CALL_F, CALL_G,
     f"<tool_call>{CALL_F}</tool_call>",
     f"[TOOL_CALLS][{CALL_F}, {CALL_G}]", f"{CALL_F}; {CALL_G}",
     "<think>", "</think>", "<thi", "</", "<", ">", "[", "]", "{", "}", '"', "\\", ",", ";", " ", "\n", "Hello",
     "[ARGS]", "é", "🚡"]
)  # fmt: skip
TEXTS = st.lists(PARTS | st.text(max_size=3), max_size=10).map("".join)
BUILDER_OPTIONS = st.tuples(
    st.sampled_from([None, HERMES, MISTRAL, LLAMA3]), st.sampled_from([None, False, True]), st.booleans()
)


@pytest.mark.full
@given(BUILDER_OPTIONS, TEXTS, st.data())
def test_deltas_put_together_are_the_message(
    options: tuple[ToolFormat | None, bool | None, bool], text: str, data: st.DataObject
) -> None:
    tool_format, is_in_reasoning, allows_parallel_calls = options
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    parts = [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]
    builder, other_builder = (
        delta_builder(tool_format, is_in_reasoning, allows_parallel_calls=allows_parallel_calls),
        delta_builder(tool_format, is_in_reasoning, allows_parallel_calls=allows_parallel_calls),
    )
    message = other_builder.message(text)
    assert join_deltas(deltas_of(builder, parts)) == comparable(message)
    assert builder.calls == other_builder.calls == len(message.get("tool_calls", []))
    assert allows_parallel_calls or other_builder.calls <= 1
    for reason in FinishReason:
        assert builder.reason(reason) == other_builder.reason(reason)
    by_character = delta_builder(tool_format, is_in_reasoning, allows_parallel_calls=allows_parallel_calls)
    assert join_deltas(deltas_of(by_character, [*text, ""])) == comparable(message)
    if tool_format is None and is_in_reasoning is None:
        assert message["content"] == text


@given(TEXTS, st.sampled_from([None, HERMES]))
def test_nothing_that_was_said_is_lost(text: str, tool_format: ToolFormat | None) -> None:
    """Without a call, the message has all text except white space and reasoning markers."""
    message = delta_builder(tool_format, False).message(text)
    if "tool_calls" in message:
        return
    text_of_message = message.get("reasoning_content", "") + (message["content"] or "")
    expected = text.lstrip(" \t\r\n").removeprefix("<think>") if "reasoning_content" in message else text
    variants = (
        expected,
        expected.replace("</think>", "", 1),
        text.replace("<think>", "", 1).replace("</think>", "", 1),
    )
    assert without_whitespace(text_of_message) in map(without_whitespace, variants)


def without_whitespace(text: str) -> str:
    return "".join(text.split())


MESSAGES: list[tuple[tuple[ToolFormat | None, bool | None], str, str | None, str, list[tuple[str, str]]]] = [
    ((None, None), "Hello.", "Hello.", "", []),
    ((None, None), "", "", "", []),
    (
        (None, None),
        f"<think>no</think><tool_call>{CALL_F}</tool_call>",
        f"<think>no</think><tool_call>{CALL_F}</tool_call>",
        "",
        [],
    ),
    ((HERMES, None), f"<tool_call>{CALL_F}</tool_call>", None, "", [("f", '{"x": 1}')]),
    ((HERMES, None), f"I look. <tool_call>{CALL_F}</tool_call>", "I look. ", "", [("f", '{"x": 1}')]),
    ((None, False), "<think>\nWell.\n</think>\n\nYes.", "Yes.", "Well.", []),
    ((None, True), "Well.</think>Yes.", "Yes.", "Well.", []),
    ((None, True), "Well, I am cut off", "", "Well, I am cut off", []),
    ((None, False), "Yes. <think>no</think>", "Yes. <think>no</think>", "", []),
    ((HERMES, False), f"<think>Look.</think>\n<tool_call>{CALL_F}</tool_call>", None, "Look.", [("f", '{"x": 1}')]),
    (
        (HERMES, False),
        f"<think><tool_call>{CALL_F}</tool_call></think>No.",
        "No.",
        f"<tool_call>{CALL_F}</tool_call>",
        [],
    ),
    ((MISTRAL, None), f"[TOOL_CALLS][{CALL_F}, {CALL_G}]", None, "", [("f", '{"x": 1}'), ("g", '{"y": "}<"}')]),
    ((HARMONY, None), "<|channel|>analysis<|message|>Well.<|end|><|channel|>final<|message|>Yes.", "Yes.", "Well.", []),
    ((LLAMA3, None), f"{CALL_F}; {CALL_G}", None, "", [("f", '{"x": 1}'), ("g", '{"y": "}<"}')]),
]


@for_each(("options", "text", "content", "reasoning", "calls"), MESSAGES)
def test_a_text_is_split_into_its_parts(
    options: tuple[ToolFormat | None, bool | None],
    text: str,
    content: str | None,
    reasoning: str,
    calls: list[tuple[str, str]],
) -> None:
    builder = delta_builder(*options)
    message = builder.message(text)
    assert message["content"] == content
    assert message.get("reasoning_content", "") == reasoning and ("reasoning_content" in message) == bool(reasoning)
    assert [tuple(call["function"].values()) for call in message.get("tool_calls", [])] == calls
    assert ("tool_calls" in message) == bool(calls) == bool(builder.calls)


def test_where_one_call_is_allowed_the_others_are_dropped_with_their_arguments() -> None:
    message = delta_builder(HERMES, allows_parallel_calls=False).message(
        f"<tool_call>{CALL_F}</tool_call><tool_call>{CALL_G}</tool_call>Done."
    )
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["f"]
    assert message["tool_calls"][0]["function"]["arguments"] == '{"x": 1}'
    assert message["content"] == "Done."


def test_ids_of_calls_are_all_different() -> None:
    text = f"[TOOL_CALLS][{CALL_F}, {CALL_F}, {CALL_F}]"
    ids = [call["id"] for _ in range(2) for call in delta_builder(MISTRAL).message(text)["tool_calls"]]
    assert len(set(ids)) == 6


@pytest.mark.parametrize("reason", list(FinishReason))
def test_the_reason_is_the_call_only_where_the_model_ended_with_one(reason: FinishReason) -> None:
    without_call, with_call = delta_builder(HERMES), delta_builder(HERMES)
    without_call.message("Hello.")
    with_call.message(f"<tool_call>{CALL_F}</tool_call>")
    assert without_call.reason(reason) == reason.value
    assert with_call.reason(reason) == ("tool_calls" if reason is FinishReason.STOP else reason.value)
    assert type(with_call.reason(reason)) is str


def test_text_is_passed_on_at_once() -> None:
    assert delta_builder().push("He") == [{"content": "He"}]
    assert delta_builder().push("") == delta_builder().finish("") == []
    builder = delta_builder(HERMES, False)
    assert builder.push("<think>We") == [{"reasoning_content": "We"}]
    assert builder.push("ll</th") == [{"reasoning_content": "ll"}]
    assert builder.push("ink> Yes <to") == [{"content": "Yes "}]
    assert [*builder.push("ol_call>" + CALL_F[:-1])[0]] == ["tool_calls"]
    assert builder.finish("}") == []


def test_the_ids_of_calls_follow_from_the_key_of_the_choice() -> None:
    def ids(key: bytes | None, num_id_chars: int = 0) -> list[str]:
        more: dict[str, Any] = {} if key is None else {"call_key": lambda: key}
        builder = ChatDeltaBuilder(HERMES.make_parser({}), num_id_chars=num_id_chars, **more)
        message = builder.message(f"<tool_call>{CALL_F}</tool_call><tool_call>{CALL_G}</tool_call>")
        return [call["id"] for call in message["tool_calls"]]

    assert ids(b"a") == ids(b"a") and len({*ids(b"a"), *ids(b"b"), *ids(None), *ids(None)}) == 8
    assert [len(call_id) for call_id in ids(b"a", 9)] == [9, 9] and ids(b"a", 9) != ids(b"b", 9)


def test_a_call_of_a_custom_tool_has_its_input_in_place_of_arguments() -> None:
    called = '<tool_call>{"name": "p", "arguments": {"input": "a\\nb"}}</tool_call>'
    answer = f"{called}<tool_call>{CALL_F}</tool_call>"

    def builder() -> ChatDeltaBuilder:
        return ChatDeltaBuilder(CustomCallParser(HERMES.make_parser({}), ["p"]), call_key=lambda: b"k")

    custom, call = builder().message(answer)["tool_calls"]
    assert {**custom, "id": ""} == {"id": "", "type": "custom", "custom": {"name": "p", "input": "a\nb"}}
    assert call["type"] == "function" and call["function"] == {"name": "f", "arguments": '{"x": 1}'}
    deltas = deltas_of(builder(), [*answer])
    assert [each["tool_calls"][0].get("custom") for each in deltas][:3] == [
        {"name": "p", "input": ""}, {"input": "a"}, {"input": "\n"},
    ]  # fmt: skip
    merged = merged_delta(deltas)
    assert [{name: value for name, value in each.items() if name != "index"} for each in merged["tool_calls"]] == [
        custom, call,
    ]  # fmt: skip
    one = ChatDeltaBuilder(CustomCallParser(HERMES.make_parser({}), ["p"]), allows_parallel_calls=False)
    assert len(one.message(called + answer)["tool_calls"]) == 1


def test_merged_deltas_are_what_a_client_joins() -> None:
    text = f"So <tool_call>{CALL_F}</tool_call><tool_call>{CALL_G}</tool_call>"
    deltas = deltas_of(delta_builder(HERMES), list(text))
    assert len(deltas) > 10
    merged = merged_delta(deltas)
    calls = merged.pop("tool_calls")
    assert merged == {"content": "So "} and [call["index"] for call in calls] == [0, 1]
    assert [call["function"] for call in calls] == join_deltas(deltas)["tool_calls"]
    assert all(call["id"].startswith("call_") and call["type"] == "function" for call in calls)
    assert merged_delta(deltas)["tool_calls"] == calls, "merging leaves the deltas as they are"


def test_a_thought_that_the_parser_of_calls_reads_has_a_blank_line_before_it() -> None:
    answer = (
        "<|channel>thought\nOne.\n<channel|>So.<|channel>thought\nTwo.\n<channel|><|channel>thought\nThree.<channel|>"
    )
    for parts in ([answer], [*answer]):
        builder = ChatDeltaBuilder(GEMMA4.make_parser({}), ReasoningParser(REASONING_FORMATS["gemma4"]))
        deltas = [*(delta for part in parts for delta in builder.push(part)), *builder.finish("")]
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "One.\n\nTwo.\n\nThree."
        assert "".join(delta.get("content", "") for delta in deltas) == "So."

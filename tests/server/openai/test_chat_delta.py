"""ChatDeltaBuilder: the joined deltas equal the message of the whole text, wherever the text is cut."""

import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.core.request import FinishReason
from chairlift.server.openai.chat_delta import ChatDeltaBuilder, Delta
from chairlift.text.reasoning_parser import ReasoningParser
from chairlift.text.tool_parser import HERMES, LLAMA3, MISTRAL, START_MARKERS, ToolCallParser

F = '{"name": "f", "arguments": {"x": 1}}'
G = '{"name": "g", "arguments": {"y": "}<"}}'


def delta_builder(
    notation: str | None = None, thinks: bool | None = None, *, allows_parallel_calls: bool = True
) -> ChatDeltaBuilder:
    """Make one; `thinks` is None where there is no reasoning, else whether the prompt has begun it."""
    calls = None if notation is None else ToolCallParser(notation)
    return ChatDeltaBuilder(
        calls, None if thinks is None else ReasoningParser(inside=thinks), allows_parallel_calls=allows_parallel_calls
    )


def deltas_of(builder: ChatDeltaBuilder, pieces: list[str]) -> list[Delta]:
    *first, last = pieces
    return [*(delta for piece in first for delta in builder.push(piece)), *builder.finish(last)]


def put_together(deltas: list[Delta]) -> dict[str, Any]:
    """Do what a client does with deltas; the ids of calls are left out."""
    result: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for delta in deltas:
        assert len(delta) == 1, "one thing at a time"
        ((name, value),) = delta.items()
        if name != "tool_calls":
            assert isinstance(value, str) and value, "nothing is no news"
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


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """Return what a message says, without what names it."""
    assert message["role"] == "assistant" and message["refusal"] is None
    calls = message.get("tool_calls", [])
    assert all(set(call) == {"id", "type", "function"} for call in calls)
    return {
        "content": message["content"] or "",
        "reasoning_content": message.get("reasoning_content", ""),
        "tool_calls": [call["function"] for call in calls],
    }


PIECES = st.sampled_from(
    [*START_MARKERS.values(), "</tool_call>", F, G, f"<tool_call>{F}</tool_call>", f"[TOOL_CALLS][{F}, {G}]",
     f"{F}; {G}",
     "<think>", "</think>", "<thi", "</", "<", ">", "[", "]", "{", "}", '"', "\\", ",", ";", " ", "\n", "Hello",
     "[ARGS]", "é", "🚡"]
)  # fmt: skip
TEXTS = st.lists(PIECES | st.text(max_size=3), max_size=10).map("".join)
BUILDER_OPTIONS = st.tuples(
    st.sampled_from([None, *START_MARKERS]), st.sampled_from([None, False, True]), st.booleans()
)


@given(BUILDER_OPTIONS, TEXTS, st.data())
def test_deltas_put_together_are_the_message(
    kind: tuple[str | None, bool | None, bool], text: str, data: st.DataObject
) -> None:
    notation, thinks, allows_parallel_calls = kind
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]
    streamed, whole = (
        delta_builder(notation, thinks, allows_parallel_calls=allows_parallel_calls),
        delta_builder(notation, thinks, allows_parallel_calls=allows_parallel_calls),
    )
    message = whole.message(text)
    assert put_together(deltas_of(streamed, pieces)) == plain(message)
    assert streamed.calls == whole.calls == len(message.get("tool_calls", []))
    assert allows_parallel_calls or whole.calls <= 1
    for reason in FinishReason:
        assert streamed.reason(reason) == whole.reason(reason)
    by_character = delta_builder(notation, thinks, allows_parallel_calls=allows_parallel_calls)
    assert put_together(deltas_of(by_character, [*text, ""])) == plain(message)
    if notation is None and thinks is None:
        assert message["content"] == text


@given(TEXTS, st.sampled_from([None, HERMES]))
def test_nothing_that_was_said_is_lost(text: str, notation: str | None) -> None:
    """Without a call, all but white space and the marks of reasoning comes back in its order."""
    message = delta_builder(notation, False).message(text)
    if "tool_calls" in message:
        return
    text_of_message = message.get("reasoning_content", "") + (message["content"] or "")
    without = text.lstrip(" \t\r\n").removeprefix("<think>") if "reasoning_content" in message else text
    variants = (
        without,
        without.replace("</think>", "", 1),
        text.replace("<think>", "", 1).replace("</think>", "", 1),
    )
    assert without_whitespace(text_of_message) in map(without_whitespace, variants)


def without_whitespace(text: str) -> str:
    return "".join(text.split())


MESSAGES: list[tuple[tuple[str | None, bool | None], str, str | None, str, list[tuple[str, str]]]] = [
    ((None, None), "Hello.", "Hello.", "", []),
    ((None, None), "", "", "", []),
    (
        (None, None),
        f"<think>no</think><tool_call>{F}</tool_call>",
        f"<think>no</think><tool_call>{F}</tool_call>",
        "",
        [],
    ),
    ((HERMES, None), f"<tool_call>{F}</tool_call>", None, "", [("f", '{"x": 1}')]),
    ((HERMES, None), f"I look. <tool_call>{F}</tool_call>", "I look. ", "", [("f", '{"x": 1}')]),
    ((None, False), "<think>\nWell.\n</think>\n\nYes.", "Yes.", "Well.", []),
    ((None, True), "Well.</think>Yes.", "Yes.", "Well.", []),
    ((None, True), "Well, I am cut off", "", "Well, I am cut off", []),
    ((None, False), "Yes. <think>no</think>", "Yes. <think>no</think>", "", []),
    ((HERMES, False), f"<think>Look.</think>\n<tool_call>{F}</tool_call>", None, "Look.", [("f", '{"x": 1}')]),
    ((HERMES, False), f"<think><tool_call>{F}</tool_call></think>No.", "No.", f"<tool_call>{F}</tool_call>", []),
    ((MISTRAL, None), f"[TOOL_CALLS][{F}, {G}]", None, "", [("f", '{"x": 1}'), ("g", '{"y": "}<"}')]),
    ((LLAMA3, None), f"{F}; {G}", None, "", [("f", '{"x": 1}'), ("g", '{"y": "}<"}')]),
]


@pytest.mark.parametrize(("kind", "text", "content", "thought", "calls"), MESSAGES)
def test_a_text_is_split_into_its_parts(
    kind: tuple[str | None, bool | None], text: str, content: str | None, thought: str, calls: list[tuple[str, str]]
) -> None:
    builder = delta_builder(*kind)
    message = builder.message(text)
    assert message["content"] == content
    assert message.get("reasoning_content", "") == thought and ("reasoning_content" in message) == bool(thought)
    assert [tuple(call["function"].values()) for call in message.get("tool_calls", [])] == calls
    assert ("tool_calls" in message) == bool(calls) == bool(builder.calls)


def test_where_one_call_is_allowed_the_others_are_dropped_with_their_arguments() -> None:
    message = delta_builder(HERMES, allows_parallel_calls=False).message(
        f"<tool_call>{F}</tool_call><tool_call>{G}</tool_call>Done."
    )
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["f"]
    assert message["tool_calls"][0]["function"]["arguments"] == '{"x": 1}'
    assert message["content"] == "Done."


def test_ids_of_calls_are_all_different() -> None:
    text = f"[TOOL_CALLS][{F}, {F}, {F}]"
    ids = [call["id"] for _ in range(2) for call in delta_builder(MISTRAL).message(text)["tool_calls"]]
    assert len(set(ids)) == 6


@pytest.mark.parametrize("reason", list(FinishReason))
def test_the_reason_is_the_call_only_where_the_model_ended_with_one(reason: FinishReason) -> None:
    silent, caller = delta_builder(HERMES), delta_builder(HERMES)
    silent.message("Hello.")
    caller.message(f"<tool_call>{F}</tool_call>")
    assert silent.reason(reason) == reason.value
    assert caller.reason(reason) == ("tool_calls" if reason is FinishReason.STOP else reason.value)
    assert type(caller.reason(reason)) is str


def test_text_is_passed_on_at_once() -> None:
    assert delta_builder().push("He") == [{"content": "He"}]
    assert delta_builder().push("") == delta_builder().finish("") == []
    builder = delta_builder(HERMES, False)
    assert builder.push("<think>We") == [{"reasoning_content": "We"}]
    assert builder.push("ll</th") == [{"reasoning_content": "ll"}]
    assert builder.push("ink> Yes <to") == [{"content": "Yes "}]
    assert [*builder.push("ol_call>" + F[:-1])[0]] == ["tool_calls"]
    assert builder.finish("}") == []

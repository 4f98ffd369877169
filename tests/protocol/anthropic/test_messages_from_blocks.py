"""MessagesFromBlocks: content blocks become messages of chat completions, and errors name the block."""

from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.protocol.anthropic.messages_from_blocks import MessagesFromBlocks
from chairlift.protocol.request_fields import MAX_MESSAGES
from support_shares import for_each


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def call(call_id: str, **call_input: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "f", "input": call_input}


def result(call_id: str, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, **fields}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def answer(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def read(*messages: Any, system: Any = None) -> tuple[MessagesFromBlocks, bool]:
    found = MessagesFromBlocks()
    if system is not None:
        found.add_system(system)
    found.add_messages(list(messages))
    return found, found.finish()


def error_of(*messages: Any, system: Any = None) -> tuple[Any, str]:
    with pytest.raises(InvalidRequest) as raised:
        read(*messages, system=system)
    assert str(raised.value.details["param"]) in raised.value.message
    return raised.value.details["param"], raised.value.message


def test_texts_and_the_system_message() -> None:
    found, continues = read(user(text("a"), text("b")), system=[text("s"), text("t")])
    assert found.messages == [{"role": "system", "content": "s\nt"}, {"role": "user", "content": "a\nb"}]
    assert found.places == ["system", "messages[0]"] and not continues
    assert read(user(text("a")), system="s")[0].messages[0] == {"role": "system", "content": "s"}
    assert [message["role"] for message in read(user(text("a")), system="")[0].messages] == ["user"]


@for_each(
    ("system", "expected"),
    [
        ([text("x-anthropic-billing-header: cc_version=2.1; cch=1f3;"), text("s")], ["s"]),
        ("x-anthropic-billing-header: cch=1f3;\n\ns", ["s"]),
        ([text("x-anthropic-a: b\nx-anthropic-c: d\ns\nx-anthropic-e: f")], ["s\nx-anthropic-e: f"]),
        ([text("x-anthropic-billing-header: cch=1f3;")], []),
        ("s\nx-anthropic-billing-header: cch=1f3;", ["s\nx-anthropic-billing-header: cch=1f3;"]),
        ("x-other: s", ["x-other: s"]),
    ],
)  # fmt: skip
def test_lines_for_anthropics_accounts_which_differ_in_every_request_are_left_out(
    system: Any, expected: list[str]
) -> None:  # fmt: skip
    found, _ = read(user(text("a")), system=system)
    assert [each["content"] for each in found.messages if each["role"] == "system"] == expected
    later, _ = read(user(text("a")), {"role": "system", "content": system})
    assert [each["content"] for each in later.messages if each["role"] == "system"] == expected


def test_messages_of_one_role_in_a_row_are_one() -> None:
    found, _ = read(
        {"role": "system", "content": "t"}, {"role": "user", "content": "a"}, user(text("b")), answer(text("c")),
        {"role": "assistant", "content": "d"}, user(text("e")), system="s",
    )  # fmt: skip
    assert [(message["role"], message["content"]) for message in found.messages] == [
        ("system", "s\nt"), ("user", "a\nb"), ("assistant", "c\nd"), ("user", "e"),
    ]  # fmt: skip


def test_thinking_and_calls_are_one_message_of_the_assistant() -> None:
    found, continues = read(
        user(text("q")),
        answer(
            {"type": "thinking", "thinking": "Hm", "signature": "x"}, {"type": "redacted_thinking", "data": "x"},
            text("Yes"), call("t1", a=1), call("t2"),
        ),
        user(result("t1", content="1"), result("t2", content=[text("2"), text("3")]), text("go on")),
    )  # fmt: skip
    assert found.messages[1:] == [
        {"role": "assistant", "content": "Yes", "reasoning_content": "Hm", "tool_calls": [
            {"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
            {"id": "t2", "type": "function", "function": {"name": "f", "arguments": {}}},
        ]},
        {"role": "tool", "content": "1", "tool_call_id": "t1"},
        {"role": "tool", "content": "2\n3", "tool_call_id": "t2"},
        {"role": "user", "content": "go on"},
    ]  # fmt: skip
    assert found.places == ["messages[0]", "messages[1]", "messages[2].content[0]", "messages[2].content[1]",
                            "messages[2]"]  # fmt: skip
    assert found.paths == {
        "messages[1].tool_calls[0].function.arguments": "messages[1].content[3].input",
        "messages[1].tool_calls[1].function.arguments": "messages[1].content[4].input",
    }
    assert not continues


@for_each(("members", "names"), [
    ({"tool_calls": [{"id": "c"}]}, ("messages.tool_calls",)),
    ({"reasoning_content": "R"}, ("messages.reasoning_content",)),
    ({"tool_calls": None, "reasoning_content": ""}, ()), ({"cache_control": {"type": "ephemeral"}}, ()),
    ({"id": "msg_1", "type": "message", "model": "m", "stop_reason": "end_turn", "usage": {"input_tokens": 1}}, ()),
])  # fmt: skip
def test_members_of_a_message_that_nothing_reads_are_named(members: dict[str, Any], names: tuple[str, ...]) -> None:
    for role in ("user", "assistant", "system"):
        found = read({"role": role, "content": "t", **members}, user(text("a")))[0]
        assert found.left_out.names == names and "tool_calls" not in found.messages[0]


def test_a_call_without_an_object_of_arguments() -> None:
    given = ({"input": None}, {}, {"input": '{"a": 1}'})
    calls = [{"type": "tool_use", "id": f"t{number}", "name": "f", **each} for number, each in enumerate(given)]
    message = read(answer(*calls), user(*(result(each["id"]) for each in calls)))[0].messages[0]
    assert [each["function"]["arguments"] for each in message["tool_calls"]] == [None, None, '{"a": 1}']


def test_the_result_of_a_tool_that_has_failed_says_so() -> None:
    found, _ = read(user(
        result("t", content="no such city", is_error=True), result("t", is_error=True), result("t", is_error=False),
        result("t", content=[]), result("t", content=None), result("t", content=[text("a"), text("b")], is_error=True),
    ))  # fmt: skip
    texts = [message["content"] for message in found.messages]
    assert texts == ["Error: no such city", "Error: ", "", "", "", "Error: a\nb"]


def test_texts_of_documents_and_search_results_are_texts() -> None:
    document = {"type": "document", "title": "Notes", "source": {"type": "text", "data": "Lunch is at noon."}}
    found = {"type": "search_result", "source": "a.txt", "content": [text("Dinner is at eight.")]}
    messages = read(user(document, text("When is lunch?")), answer(call("t")), user(result("t", content=[found])))[0]
    assert [each["content"] for each in messages.messages] == [
        "Title: Notes\n\nLunch is at noon.\nWhen is lunch?", "", "Source: a.txt\n\nDinner is at eight.",
    ]  # fmt: skip


def test_the_last_message_of_the_assistant_is_continued() -> None:
    assert read(user(text("q")), answer(text("It is")))[1]
    assert read(user(text("q")), {"role": "assistant", "content": "It is"})[1]
    for empty in ("", [], [text("")]):
        found, continues = read(user(text("q")), {"role": "assistant", "content": empty})
        assert not continues and len(found.messages) == len(found.places) == 1
    assert error_of(user(text("q")), answer(call("t")))[0] == "messages[1]"
    thinking = {"type": "thinking", "thinking": "Hm"}
    assert error_of(user(text("q")), answer(thinking))[0] == "messages[1]"
    assert error_of(answer())[0] == "messages"


@for_each(("message", "param"), [
    (7, "messages[0]"),
    ({"content": "a"}, "messages[0].role"),
    ({"role": ["user"], "content": "a"}, "messages[0].role"),
    ({"role": "tool", "content": "a"}, "messages[0].role"),
    ({"role": "user"}, "messages[0].content"),
    ({"role": "user", "content": None}, "messages[0].content"),
    ({"role": "user", "content": 7}, "messages[0].content"),
    (user("a"), "messages[0].content[0]"),
    (user({}), "messages[0].content[0].type"),
    (user({"type": []}), "messages[0].content[0].type"),
    (user({"type": "smell"}), "messages[0].content[0].type"),
    (user(call("t")), "messages[0].content[0].type"),
    (answer(result("t")), "messages[0].content[0].type"),
    ({"role": "system", "content": [result("t")]}, "messages[0].content[0].type"),
    (user(text("a"), {"type": "text"}), "messages[0].content[1].text"),
    (user({"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/"}}), "messages[0].content[0]"),
    (user({"type": "document", "source": {}}), "messages[0].content[0]"),
    (user({"type": "search_result", "content": 7}), "messages[0].content[0].content"),
    (answer({"type": "document", "source": {}}), "messages[0].content[0]"),
    (user(result("t", content=[{"type": "web_search_tool_result"}])), "messages[0].content[0].content[0].type"),
    (user({"type": "tool_result"}), "messages[0].content[0].tool_use_id"),
    (user(result("t", content=7)), "messages[0].content[0].content"),
    (user(result("t", content=[{"type": "image"}])), "messages[0].content[0].content[0]"),
    (user(result("t", is_error="yes")), "messages[0].content[0].is_error"),
    (answer({"type": "thinking"}), "messages[0].content[0].thinking"),
    (answer({**call("t"), "input": 5}), "messages[0].content[0].input"),
    (answer({**call("t"), "id": 7}), "messages[0].content[0].id"),
    (answer({**call("t"), "name": None}), "messages[0].content[0].name"),
])  # fmt: skip
def test_an_error_names_the_block(message: Any, param: str) -> None:
    found, said = error_of(message)
    assert found == param and len(said) < 300 and "127.0.0.1" not in said


@pytest.mark.parametrize(("system", "param"), [
    (7, "system"), ([7], "system[0]"), ([text("a"), {"type": "image"}], "system[1]"), ([{"type": "text"}],
                                                                                     "system[0].text"),
])  # fmt: skip
def test_errors_of_the_system_message(system: Any, param: str) -> None:
    assert error_of(user(text("a")), system=system)[0] == param


def test_the_number_of_messages_is_bounded() -> None:
    for messages in ("a", []):
        with pytest.raises(InvalidRequest, match="messages must"):
            MessagesFromBlocks().add_messages(messages)
    with pytest.raises(InvalidRequest, match=str(MAX_MESSAGES + 1)):
        MessagesFromBlocks().add_messages([user(text("a"))] * (MAX_MESSAGES + 1))
    assert error_of(user(*[result("t")] * (MAX_MESSAGES + 1)))[0] == "messages"
    assert len(read(*[user(text("a"))] * MAX_MESSAGES)[0].messages) == 1


@for_each("kind", [
    "server_tool_use", "web_search_tool_result", "web_fetch_tool_result", "bash_code_execution_tool_result",
    "mcp_tool_use", "mcp_tool_result", "container_upload", "compaction",
])  # fmt: skip
def test_blocks_of_tools_that_anthropic_runs_are_left_out_by_name(kind: str) -> None:
    block = {"type": kind, "id": "srvtoolu_1", "content": [{"type": "web_search_result", "title": "x"}]}
    found, _ = read(user(text("a"), block), answer(block, text("b")), user(text("c")))
    assert [message["content"] for message in found.messages] == ["a", "b", "c"]
    assert found.left_out.names == (f"messages.{kind}",)
    assert error_of(user(text("a")), system=[block])[0] == "system[0].type"
    alone, continues = read(user(block))
    assert alone.messages == [{"role": "user", "content": ""}] and not continues and alone.places == ["messages[0]"]

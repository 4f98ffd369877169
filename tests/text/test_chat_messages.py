"""ChatMessages: what clients send of earlier answers, calls and results is taken; errors name their place."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion

from chairlift.core.errors import InvalidRequest
from chairlift.text.chat_messages import MAX_NAMED_KEYS, ChatMessage, ChatMessages, ToolCall, joined
from support_request_bodies import JSON, outcome
from support_server import CHAT, open_server, run
from support_services import fake_service
from support_shares import for_each

USER = {"role": "user", "content": "Hello."}


def call(call_id: Any = "c", arguments: Any = "{}", name: Any = "f") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*calls: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def tool_result(call_id: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "5", **fields}


def parsed(*messages: Any, template: str = "") -> tuple[ChatMessage, ...]:
    before = repr(messages)
    result = ChatMessages.parse(messages, template)
    assert repr(messages) == before, "the request is not changed"
    assert result.unread == ()
    return result.messages


def answer(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", **fields}


def rejection(*messages: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        ChatMessages.parse(messages)
    assert caught.value.message.startswith(str(caught.value.details["param"]))
    return caught.value


@for_each(
    ("fields", "expected"),
    [
        ({}, ChatMessage(role="assistant")),
        ({"content": None}, ChatMessage(role="assistant")),
        ({"content": ""}, ChatMessage(role="assistant")),
        ({"content": []}, ChatMessage(role="assistant")),
        ({"content": None, "tool_calls": []}, ChatMessage(role="assistant")),
        ({"content": "Yes.", "function_call": {}}, ChatMessage(role="assistant", content="Yes.")),
        (
            {"content": "Yes.", "refusal": None, "audio": None, "function_call": None, "tool_calls": None},
            ChatMessage(role="assistant", content="Yes."),
        ),
        (
            {"content": "Yes.", "annotations": [{"type": "url_citation"}], "refusal": ""},
            ChatMessage(role="assistant", content="Yes."),
        ),
        ({"content": None, "refusal": "I cannot."}, ChatMessage(role="assistant", content="I cannot.")),
        ({"content": "", "refusal": "I cannot."}, ChatMessage(role="assistant", content="I cannot.")),
        ({"content": "Yes.", "refusal": "I cannot."}, ChatMessage(role="assistant", content="Yes.")),
        ({"reasoning": "Well."}, ChatMessage(role="assistant", reasoning="Well.")),
        ({"content": "Yes.", "thinking": "Hm."}, ChatMessage(role="assistant", content="Yes.", reasoning="Hm.")),
        (
            {"reasoning": "A", "thinking": "B", "reasoning_content": "C"},
            ChatMessage(role="assistant", reasoning="C"),
        ),
        (
            {"content": [{"type": "thinking", "thinking": "A", "signature": "s"}, {"type": "reasoning", "text": "B"},
                         {"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "Yes."}]},
            ChatMessage(role="assistant", content="Yes.", reasoning="A\nB"),
        ),
        ({"content": [{"type": "thinking", "thinking": "A"}]}, ChatMessage(role="assistant", reasoning="A")),
        (
            {"content": [{"type": "output_text", "text": "Yes.", "annotations": []},
                         {"type": "refusal", "refusal": "No."}]},
            ChatMessage(role="assistant", content="Yes.\nNo."),
        ),
        ({"content": "Yes.", "name": "Ann"}, ChatMessage(role="assistant", content="Yes.", name="Ann")),
    ],
)  # fmt: skip
def test_an_answer_that_is_sent_back(fields: dict[str, Any], expected: ChatMessage) -> None:
    assert parsed(answer(**fields)) == (expected,)


def test_parts_of_the_other_roles_are_one_text() -> None:
    content = [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}]
    for role in ("user", "system", "developer"):
        assert parsed({"role": role, "content": content}) == (ChatMessage(role=role, content="a\nb"),)
        assert parsed({"role": role, "content": ["a", content[1]]}) == (ChatMessage(role=role, content="a\nb"),)
    assert parsed(answer(content=["a", "b"])) == (ChatMessage(role="assistant", content="a\nb"),)
    assert parsed(calling(call()), tool_result("c", content=content))[1].content == "a\nb"


@for_each("part", [{"type": "image_url"}, {"type": ["text"]}, {"text": "a"}, 5, None])
def test_other_parts_are_refused_for_every_role(part: Any) -> None:
    for role in ("user", "assistant"):
        error = rejection(USER, {"role": role, "content": [{"type": "text", "text": "a"}, part]})
        assert error.message.startswith("messages[1].content[1] must be a part of type 'text', got ")
    error = rejection({"role": "user", "content": [{"type": "thinking", "thinking": "a"}]})
    assert "must be a part of type 'text', got 'thinking'" in error.message


@for_each(
    ("message", "param", "words"),
    [
        (5, "messages[1]", "must be an object with role and content, got int"),
        ({"content": "x"}, "messages[1].role", "must be one of assistant, context, "),
        ({"role": "king", "content": "x"}, "messages[1].role", "got 'king'"),
        ({"role": "user"}, "messages[1].content", "is missing"),
        ({"role": "system", "content": None}, "messages[1].content", "is missing"),
        ({"role": "user", "content": 5}, "messages[1].content", "must be a string or a list of text parts, got int"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text", "must be a string, got NoneT"),
        (answer(refusal=["no"]), "messages[1].refusal", "must be a string or null, got list"),
        (answer(function_call="f"), "messages[1].function_call", "must be an object"),
        (answer(function_call={"arguments": "{}"}), "messages[1].function_call.name", "must be a string"),
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused_by_its_place(message: Any, param: str, words: str) -> None:
    error = rejection(USER, message)
    assert error.details["param"] == param and words in error.message


@for_each("content", [None, [], ""])
def test_a_result_may_be_empty_or_have_no_content(content: Any) -> None:
    assert parsed(calling(call()), tool_result("c", content=content))[1].content == ""
    assert parsed(calling(call()), {"role": "tool", "tool_call_id": "c"})[1].content == ""


@for_each(
    "messages",
    [
        [USER, calling(call()), tool_result("c")],
        [USER, calling(call("a"), call("b")), tool_result("b"), tool_result("a")],
        [calling(call("a")), USER, tool_result("a"), tool_result("a")],
    ],
)
def test_results_belong_to_calls_before_them_and_have_their_names(messages: list[Any]) -> None:
    results = [each for each in parsed(*messages) if each.role == "tool"]
    assert {(each.call_id, each.name) for each in results} <= {("a", "f"), ("b", "f"), ("c", "f")}
    assert parsed(calling(call()), tool_result("c", name="own"))[1].name == "own"


@for_each(
    ("messages", "param"),
    [
        ([tool_result("c")], "messages[0].tool_call_id"),
        ([USER, calling(call("a")), tool_result("b")], "messages[2].tool_call_id"),
        ([tool_result("a"), calling(call("a"))], "messages[0].tool_call_id"),
        ([{"role": "user", "content": "x", "tool_calls": [call("a")]}, tool_result("a")], "messages[1].tool_call_id"),
        ([calling(call()), tool_result(["c"])], "messages[1].tool_call_id"),
        ([{"role": "tool", "content": "5"}], "messages[0].tool_call_id"),
        ([calling(call("a")), tool_result("a"), tool_result(None)], "messages[2].tool_call_id"),
        ([calling(call("a")), {**tool_result(None), "name": "g"}], "messages[1].tool_call_id"),
        ([calling({"type": "custom", "id": 5, "custom": {"name": "f"}})], "messages[0].tool_calls[0].id"),
        ([{**calling(), "tool_calls": "x"}], "messages[0].tool_calls"),
        ([{**calling(), "tool_calls": {}}], "messages[0].tool_calls"),
        ([calling(call(), 5)], "messages[0].tool_calls[1].function.name"),
        ([calling({"id": "c"})], "messages[0].tool_calls[0].function.name"),
        (
            [calling({"id": "c", "type": "web_search"})],
            "messages[0].tool_calls[0].type",
        ),
        ([calling({"id": "c", "type": "custom"})], "messages[0].tool_calls[0].custom.name"),
        ([calling({"id": "c", "type": "custom", "custom": {"name": 5}})], "messages[0].tool_calls[0].custom.name"),
        (
            [calling({"id": "c", "type": "custom", "custom": {"name": "f", "input": 5}})],
            "messages[0].tool_calls[0].custom.input",
        ),
        ([calling(call(name=None))], "messages[0].tool_calls[0].function.name"),
        ([calling(call(call_id=5))], "messages[0].tool_calls[0].id"),
        *(([calling(call(arguments=each))], "messages[0].tool_calls[0].function.arguments")
          for each in (5, 1.5, True, [], ["{}"])),
    ],
)  # fmt: skip
def test_a_result_of_no_call_and_a_call_that_is_none_are_refused(messages: list[Any], param: str) -> None:
    assert rejection(*messages).details["param"] == param


@for_each("missing", [{}, {"id": None}, {"id": ""}])
def test_results_without_an_id_follow_in_the_order_of_the_calls(missing: dict[str, Any]) -> None:
    """Ids that are missing are new ones; a result that names its function belongs to the first call of this one."""
    calls = [{**missing, "function": {"name": name}} for name in "fgf"]
    taken = {"id": "call00002", "function": {"name": "h"}}
    custom = {**missing, "type": "custom", "custom": {"name": "p", "input": "x"}}
    results = [{"role": "tool", "content": "5", **({"tool_call_id": missing["id"]} if missing else {})}] * 5
    results[1] = {**results[1], "name": "f"}
    sent = parsed(calling(taken, *calls, custom), *results, calling(calls[0]), results[0])
    ids = [each.id for each in sent[0].calls]
    assert ids == ["call00002", "call00001", "call00003", "call00004", "call00005"]
    assert [each.call_id for each in sent[1:6]] == [ids[0], ids[1], ids[2], ids[3], ids[4]]
    assert sent[6].calls[0].id == sent[7].call_id == "call00006"


def test_a_result_that_names_its_function_may_come_before_others() -> None:
    named = {"role": "tool", "content": "5", "name": "g"}
    _, first, second = parsed(calling(call("a"), call("b", name="g")), named, {"role": "tool", "content": "6"})
    assert (first.call_id, second.call_id) == ("b", "a")


def test_many_calls_and_results_without_ids_take_linear_time() -> None:
    number = 5000
    calls = [{"function": {"name": "f"}} for _ in range(number)]
    assert (
        len({each.call_id for each in parsed(calling(*calls), *[{"role": "tool", "content": "5"}] * number)})
        == number + 1
    )


@for_each(
    "arguments",
    ["x", "[]", "5", "null", '"x"', "{", '{"x": }', "{'x': 1}", '{"x": NaN}', '{"x": -Infinity}', '{"city": "Par',
     '{"x": 1e999}', '{"x": "\\ud800"}', '{"x": ' + "[" * 5000 + "]" * 5000 + "}", '{"x": ' + "1" * 5000 + "}", "{}{}"],
)  # fmt: skip
def test_arguments_that_were_cut_off_stay_text(arguments: str) -> None:
    assert parsed(calling(call("a", arguments)))[0].calls[0].arguments == arguments


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [("", {}), (None, {}), ({}, {}), ({"x": 1}, {"x": 1}), (' {"x": [1, {"y": null}]} ', {"x": [1, {"y": None}]}),
     ('{"n": 100000000000000000000000000}', {"n": 10**26})],
)  # fmt: skip
def test_arguments_are_objects(arguments: Any, expected: Any) -> None:
    [message] = parsed(calling(call("a", arguments)))
    assert message.calls[0].arguments == expected


def test_a_call_may_have_no_arguments_and_keeps_what_else_it_has() -> None:
    [message] = parsed(calling({"id": "a", "index": 0, "function": {"name": "f", "strict": True}}))
    [written] = message.as_json()["tool_calls"]
    assert written == {"id": "a", "index": 0, "function": {"name": "f", "strict": True, "arguments": {}}}


def test_a_call_of_a_custom_tool_is_one_of_the_function_that_stands_for_it() -> None:
    custom = {"id": "c", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
    message, result = parsed(calling(custom), tool_result("c"))
    written = {"name": "patch", "arguments": {"input": "*** Begin"}}
    assert message.as_json()["tool_calls"] == [{"type": "function", "id": "c", "function": written}]
    assert (result.call_id, result.name) == ("c", "patch")


def test_the_older_form_of_calls_and_results_becomes_the_newer_one() -> None:
    messages = parsed(
        USER,
        answer(function_call={"name": "f", "arguments": '{"x": 1}'}),
        {"role": "function", "name": "f", "content": "5"},
        answer(content="", function_call={"name": "g", "arguments": ""}),
        {"role": "function", "name": "g", "content": None},
    )
    _, first, result, second, other = messages
    assert [(each.calls[0].name, each.calls[0].arguments) for each in (first, second)] == [("f", {"x": 1}), ("g", {})]
    assert result == ChatMessage(role="tool", content="5", call_id=first.calls[0].id, name="f")
    assert other == ChatMessage(role="tool", call_id=second.calls[0].id, name="g")
    [alone] = parsed({"role": "function", "name": "f", "content": "5"})
    assert alone == ChatMessage(role="function", content="5", name="f")


@for_each("calls", [[1], [{}], [None], "x", 5, [call(arguments="{")]])
def test_calls_of_other_roles_are_left_to_the_template(calls: Any) -> None:
    [message] = ChatMessages.parse([{"role": "user", "content": "x", "tool_calls": calls}]).as_json()
    assert message["tool_calls"] == [*calls] if isinstance(calls, list) else calls


def test_a_message_is_written_with_what_it_has() -> None:
    assert ChatMessage(role="user", content="x").as_json() == {"role": "user", "content": "x"}
    message = ChatMessage(
        role="assistant", reasoning="R", calls=(ToolCall("c", "f", {"x": 1}),), name="n", other={"tool_plan": "p"}
    )
    assert message.as_json() == {
        "role": "assistant", "content": "", "reasoning_content": "R", "thinking": "R", "reasoning": "R", "name": "n",
        "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {"x": 1}}}], "tool_plan": "p",
    }  # fmt: skip
    assert ChatMessage(role="tool", content="5", call_id="c").as_json()["tool_call_id"] == "c"
    assert ChatMessage(role="user", content="a").with_text("b").content == "a\n\nb" == joined("", "a", "", "b")


def test_keys_that_nothing_reads_are_named_once() -> None:
    messages: list[Any] = [
        {**USER, "cache_control": {}, "tool_plan": "x", "timestamp": 5, "weight": None}, {**USER, "timestamp": 6},
        answer(content="Yes.", audio={"id": "audio_1"}, reasoning=[{"text": "A"}]),
    ]  # fmt: skip
    result = ChatMessages.parse(messages, "{{ message.tool_plan }}")
    assert result.unread == ("messages.cache_control", "messages.timestamp", "messages.audio", "messages.reasoning")
    written = result.as_json()
    assert written[0]["tool_plan"] == "x", "this template reads it"
    assert "reasoning" not in written[2]
    many = [{**USER, f"key{number}": 1} for number in range(1000)]
    assert len(ChatMessages.parse(many).unread) == MAX_NAMED_KEYS


CALL = st.builds(call, JSON, JSON, JSON) | JSON
MESSAGE = (
    st.builds(lambda calls: calling(*calls), st.lists(CALL, max_size=3))
    | st.builds(tool_result, JSON)
    | st.fixed_dictionaries({"role": JSON, "tool_calls": JSON | st.lists(CALL, max_size=2)})
    | JSON
)


@pytest.mark.full
@given(st.lists(MESSAGE, max_size=4))
def test_messages_are_parsed_or_refused_by_a_place(messages: list[Any]) -> None:
    before = orjson.dumps(messages)
    result = outcome(ChatMessages.parse, messages)
    assert orjson.dumps(messages) == before
    if isinstance(result, InvalidRequest):
        assert str(result.details["param"]).startswith("messages[")
    else:
        assert len(result.messages) == len(messages)


def test_answers_of_this_server_can_be_sent_back_in_every_form_of_the_client() -> None:
    async def scenario() -> None:
        async with open_server(fake_service()) as server:
            body = {"model": "fake", "messages": [USER], "max_tokens": 3, "seed": 1}
            completion = ChatCompletion.model_validate((await server.http.post(CHAT, json=body)).json())
            message = completion.choices[0].message
            for form in (message.model_dump(), message.model_dump(exclude_none=True), message.to_dict()):
                following = {**body, "messages": [USER, form, USER]}
                response = await server.http.post(CHAT, json=following)
                assert response.status_code == 200, response.text
                assert "x-ignored-parameters" not in response.headers

    run(scenario())


def test_keys_without_effect_are_named_in_the_response() -> None:
    async def scenario() -> str:
        async with open_server(fake_service()) as server:
            body = {"model": "fake", "messages": [{**USER, "cache_control": {"type": "ephemeral"}}], "max_tokens": 3}
            return str((await server.http.post(CHAT, json=body)).headers["x-ignored-parameters"])

    assert run(scenario()) == "messages.cache_control"

"""tool_choice.py: tool calls and tool results in messages, and their arguments."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.core.errors import InvalidRequest
from chairlift.server.openai.tool_choice import check_messages, parsed_arguments
from support_parse_request import JSON, outcome
from support_shares import for_each


def call(call_id: Any = "c", arguments: Any = "{}", name: Any = "f") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def assistant(*calls: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def tool_result(call_id: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "5"}


USER = {"role": "user", "content": "Hello."}


@for_each(
    "messages",
    [
        [USER],
        [USER, {"role": "assistant", "content": "Hi."}],
        [USER, {"role": "assistant", "content": "Hi.", "tool_calls": None}],
        [USER, assistant()],
        [USER, assistant(call()), tool_result("c")],
        [USER, assistant(call("a"), call("b")), tool_result("b"), tool_result("a")],
        [assistant(call("a")), USER, tool_result("a"), tool_result("a")],
        [assistant(call(arguments=' {"x": [1, {"y": null}]} '))],
    ],
)
def test_calls_and_their_answers_are_taken(messages: list[Any]) -> None:
    check_messages(messages)


@for_each(
    ("messages", "param"),
    [
        ([tool_result("c")], "messages[0].tool_call_id"),
        ([USER, assistant(call("a")), tool_result("b")], "messages[2].tool_call_id"),
        ([tool_result("a"), assistant(call("a"))], "messages[0].tool_call_id"),
        ([{"role": "user", "content": "x", "tool_calls": [call("a")]}, tool_result("a")], "messages[1].tool_call_id"),
        ([assistant(call()), {"role": "tool", "content": "5"}], "messages[1].tool_call_id"),
        ([assistant(call()), tool_result(None)], "messages[1].tool_call_id"),
        ([assistant(call()), tool_result(["c"])], "messages[1].tool_call_id"),
        ([{**assistant(), "tool_calls": "x"}], "messages[0].tool_calls"),
        ([{**assistant(), "tool_calls": {}}], "messages[0].tool_calls"),
        ([assistant(call(), 5)], "messages[0].tool_calls[1].function.name"),
        ([assistant({"id": "c"})], "messages[0].tool_calls[0].function.name"),
        (
            [assistant({"id": "c", "type": "custom", "custom": {"name": "f", "input": "x"}})],
            "messages[0].tool_calls[0].type",
        ),
        ([assistant(call(name=None))], "messages[0].tool_calls[0].function.name"),
        ([assistant(call(call_id=5))], "messages[0].tool_calls[0].id"),
        ([assistant(call(call_id=None))], "messages[0].tool_calls[0].id"),
    ],
)
def test_an_answer_to_no_call_and_a_call_that_is_none_are_refused(messages: list[Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_messages(messages)
    assert caught.value.details["param"] == param
    assert caught.value.message.startswith(param)


@pytest.mark.parametrize("arguments", [5, 1.5, True, [], ["{}"]])
def test_arguments_of_another_type_are_refused(arguments: Any) -> None:
    with pytest.raises(InvalidRequest, match="must be a string that contains a JSON object, got") as caught:
        check_messages([assistant(call(arguments=arguments))])
    assert caught.value.details["param"] == "messages[0].tool_calls[0].function.arguments"


@for_each(
    "arguments",
    ["x", "[]", "5", "null", '"x"', "{", '{"x": }', "{'x': 1}", '{"x": NaN}', '{"x": -Infinity}', '{"city": "Par',
     '{"x": 1e999}', '{"x": "\\ud800"}', '{"x": ' + "[" * 5000 + "]" * 5000 + "}", '{"x": ' + "1" * 5000 + "}", "{}{}"],
)  # fmt: skip
def test_arguments_that_were_cut_off_stay_text(arguments: str) -> None:
    messages = [USER, assistant(call("a", arguments)), tool_result("a")]
    check_messages(messages)
    assert parsed_arguments(messages) == messages


@pytest.mark.parametrize(("arguments", "parsed"), [("", {}), (None, {}), ({}, {}), ({"x": 1}, {"x": 1})])
def test_no_arguments_at_all_are_an_empty_object_and_an_object_stays_one(arguments: Any, parsed: Any) -> None:
    messages = [USER, assistant(call("a", arguments))]
    check_messages(messages)
    assert parsed_arguments(messages)[1]["tool_calls"][0]["function"]["arguments"] == parsed


def test_a_call_may_have_no_key_for_arguments() -> None:
    messages = [USER, assistant({"id": "a", "function": {"name": "f"}})]
    check_messages(messages)
    assert parsed_arguments(messages)[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {}}


def test_templates_get_arguments_as_objects() -> None:
    messages = [
        USER,
        assistant(call("a", '{"x": 1}'), call("b", '{"n": 100000000000000000000000000}')),
        tool_result("a"),
    ]
    before = orjson.dumps(messages)
    first, second = parsed_arguments(messages)[1]["tool_calls"]
    assert first == {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    assert second["function"]["arguments"] == {"n": 10**26}, "integers keep their value at any size"
    assert parsed_arguments(messages)[::2] == messages[::2]
    assert orjson.dumps(messages) == before, "the request is not changed"


@for_each("calls", [[1], [{}], [None], "x", 5, [call(arguments="{")]])
def test_what_is_no_assistants_call_is_left_as_it_is(calls: Any) -> None:
    messages = [{"role": "user", "content": "x", "tool_calls": calls}, "no message", {"tool_calls": calls}]
    check_messages(messages)
    assert parsed_arguments(messages) == messages


CALL = st.builds(call, JSON, JSON, JSON) | JSON
MESSAGE = (
    st.builds(lambda calls: assistant(*calls), st.lists(CALL, max_size=3))
    | st.builds(tool_result, JSON)
    | st.fixed_dictionaries({"role": JSON, "tool_calls": JSON | st.lists(CALL, max_size=2)})
    | JSON
)


@pytest.mark.full
@given(st.lists(MESSAGE, max_size=4))
def test_messages_that_pass_can_be_parsed(messages: list[Any]) -> None:
    result = outcome(check_messages, messages)
    if isinstance(result, InvalidRequest):
        assert str(result.details["param"]).startswith("messages[")
        return
    for before, after in zip(messages, parsed_arguments(messages), strict=True):
        if isinstance(before, dict) and before.get("role") == "assistant":
            for each in after.get("tool_calls") or []:
                assert isinstance(each["function"]["arguments"], dict | str)
        else:
            assert after == before

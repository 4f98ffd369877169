"""Tools: what may be offered and chosen, what a forced call's grammar writes, and what messages may say of calls."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.core.errors import InvalidRequest
from chairlift.protocol.request_fields import MAX_TOOLS
from chairlift.protocol.request_schemas import MAX_TOOL_NAME_CHARS
from chairlift.server.openai.chat_delta import ChatDeltaBuilder
from chairlift.server.openai.tool_choice import ToolChoice, check_messages, parsed_arguments, read_tools
from chairlift.text.tool_grammar import READ_AS, prefill
from chairlift.text.tool_parser import HERMES, LLAMA3, MISTRAL, START_MARKERS, ToolCallParser
from support_structure import EOS, allowed, at_random, grammar_of, written

X = {"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["x"],
     "additionalProperties": False}  # fmt: skip
FLAG = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": False}


def tool(name: Any, parameters: Any = X, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


TOOLS = [tool("f"), tool("g", FLAG)]


def named(name: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def refused(param: str, **given: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        read_tools(given, HERMES)
    assert caught.value.details["param"] == param
    assert caught.value.message.startswith(param)
    assert len(caught.value.message) < 400
    return caught.value.message


# -- what is offered ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [{}, {"tools": None}, {"tools": []}, {"tools": [], "tool_choice": "none"},
                                   {"tool_choice": "auto"}, {"tool_choice": None}])  # fmt: skip
@pytest.mark.parametrize("notation", [HERMES, None])
def test_without_tools_there_is_nothing_to_choose(given: dict[str, Any], notation: str | None) -> None:
    assert read_tools(given, notation) is None


@pytest.mark.parametrize("choice", ["required", "f", "", named("f"), [], {}, 5, True])
def test_a_choice_needs_tools(choice: Any) -> None:
    assert "needs tools" in refused("tool_choice", tool_choice=choice)
    assert "needs tools" in refused("tool_choice", tool_choice=choice, tools=[])


def test_tools_may_be_called_as_the_model_likes() -> None:
    for choice in (None, "auto"):
        for notation in START_MARKERS:
            result = read_tools({"tools": TOOLS, "tool_choice": choice}, notation)
            assert result == ToolChoice(tools=TOOLS, tool_format=notation)
            assert result.shows_special is (notation != HERMES), "marks that are special tokens stay in the text"


def test_tools_that_may_not_be_called_are_not_shown_to_the_model() -> None:
    for notation in (HERMES, None):
        result = read_tools({"tools": TOOLS, "tool_choice": "none"}, notation)
        assert result == ToolChoice()
        assert not result.shows_special


def test_a_model_that_knows_no_calls_is_offered_no_tools() -> None:
    with pytest.raises(InvalidRequest, match="no known format for tool calls") as caught:
        read_tools({"tools": TOOLS}, None)
    assert caught.value.details["param"] == "tools"


@pytest.mark.parametrize("tools", [{}, "f", 5, True, {"0": TOOLS[0]}])
def test_tools_are_a_list(tools: Any) -> None:
    assert "must be a list" in refused("tools", tools=tools)


def test_there_are_so_many_tools_at_most() -> None:
    many = [tool(f"f{number}") for number in range(MAX_TOOLS + 1)]
    assert "129 entries, the limit is 128" in refused("tools", tools=many)
    result = read_tools({"tools": many[:MAX_TOOLS], "tool_choice": "required"}, HERMES)
    assert result is not None and result.structured is not None


@pytest.mark.parametrize(
    "entry",
    [None, 5, "f", [], {}, {"type": "function"}, {"type": "function", "function": "f"}, {"function": {"name": "f"}},
     {"type": "retrieval", "function": {"name": "f"}}, {"type": "function", "function": None}],
)  # fmt: skip
def test_a_tool_is_a_function(entry: Any) -> None:
    assert refused("tools[1]", tools=[TOOLS[0], entry])


@pytest.mark.parametrize(
    "name",
    [
        None,
        5,
        "",
        "a b",
        "f\n",
        "\nf",
        "a\nb",
        "ä",
        "f()",
        "x" * (MAX_TOOL_NAME_CHARS + 1),
        ["f"],
        "f\x00",
        "<|im_end|>",
    ],
)
def test_a_name_is_plain(name: Any) -> None:
    assert refused("tools[0].function.name", tools=[tool(name)])


@pytest.mark.parametrize("name", ["f", "x" * MAX_TOOL_NAME_CHARS, "a.b:c-d_e", "9"])
def test_plain_names_are_taken(name: str) -> None:
    result = read_tools({"tools": [tool(name)], "tool_choice": named(name)}, HERMES)
    assert result is not None and result.tools == [tool(name)]


def test_a_name_is_there_once() -> None:
    assert "twice" in refused("tools[2].function.name", tools=[*TOOLS, tool("f", FLAG)])


@pytest.mark.parametrize(
    "parameters",
    [
        [],
        "x",
        5,
        True,
        False,
        {"type": "string"},
        {"type": ["object", "null"]},
        {"type": None},
        {"x-guidance": {}},
        {"a": [[[[{}]]]] * 300_000},
    ],
)
def test_parameters_are_a_schema_within_bounds(parameters: Any) -> None:
    assert refused("tools[0].function.parameters", tools=[tool("f", parameters)])


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object"}, {"description": "any"}])
def test_a_tool_without_parameters_takes_any_object(parameters: Any) -> None:
    result = read_tools({"tools": [tool("f", parameters)], "tool_choice": "required"}, HERMES)
    assert result is not None
    for arguments, fits in (("{}", True), ('{"any": [1, null]}', True), ("[]", False), ("5", False)):
        assert said(result, f'{{"name": "f", "arguments": {arguments}}}') == (fits, fits), arguments


@pytest.mark.parametrize(("parameters", "empty", "one", "other"), [
    ({"properties": {}}, True, False, False),
    ({"properties": {"x": {"type": "integer"}}}, True, True, False),
    ({"properties": {"x": {"type": "integer"}}, "required": ["x"]}, False, True, False),
    ({"properties": {"x": {"type": "integer"}}, "additionalProperties": True}, True, True, True),
    ({"properties": {"x": {"type": "integer"}}, "additionalProperties": {"type": "integer"}}, True, True, True),
    ({"properties": {"x": {"type": "integer"}}, "patternProperties": {"^y$": {}}}, True, True, True),
    ({"properties": {"x": {"type": "integer"}}, "allOf": [{"required": ["x"]}]}, False, True, True),
    ({"properties": {"x": {"type": "integer"}}, "required": ["y"]}, False, False, True),
], ids=["none", "optional", "required", "open", "typed", "patterns", "composed", "unnamed"])  # fmt: skip
def test_a_forced_call_makes_up_no_arguments(parameters: Any, empty: bool, one: bool, other: bool) -> None:
    result = read_tools({"tools": [tool("f", parameters)], "tool_choice": "required"}, HERMES)
    assert result is not None and result.tools == [tool("f", parameters)], "the model reads what was sent"
    for arguments, fits in {"{}": empty, '{"x": 1}': one, '{"x": 1, "y": 2}': other}.items():
        assert said(result, f'{{"name": "f", "arguments": {arguments}}}')[1] == fits, arguments


@pytest.mark.parametrize("parameters", [{"properties": 5}, {"properties": {"x": {}}, "required": 5},
                                        {"properties": {"x": {}}, "required": [["x"]]}])  # fmt: skip
def test_an_invalid_schema_is_left_to_the_grammar_compiler(parameters: Any) -> None:
    result = read_tools({"tools": [tool("f", parameters)], "tool_choice": "required"}, HERMES)
    assert result is not None and result.structured is not None
    assert "additionalProperties" not in str(result.structured.grammar)


def test_whether_calls_may_be_several_is_true_or_false() -> None:
    for value in ("yes", 0, [], {}):
        assert refused("parallel_tool_calls", tools=TOOLS, parallel_tool_calls=value)
        assert refused("parallel_tool_calls", parallel_tool_calls=value)
    result = read_tools({"tools": TOOLS, "parallel_tool_calls": False}, HERMES)
    assert result is not None and not result.allows_parallel_calls


# -- what is chosen ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "choice",
    ["always", "f", "", 5, True, [], {}, {"type": "function"}, {"type": "function", "function": "f"},
     {"function": {"name": "f"}}, named(None), named(5), named(["f"]), {"type": "allowed_tools"}],
)  # fmt: skip
def test_a_choice_is_a_word_or_names_a_function(choice: Any) -> None:
    assert "must be none, auto, required or an object" in refused("tool_choice", tools=TOOLS, tool_choice=choice)


@pytest.mark.parametrize("name", ["h", "", "F", "f ", "x" * 10_000])
def test_the_function_that_is_chosen_is_one_of_the_tools(name: str) -> None:
    assert "not among the tools" in refused("tool_choice", tools=TOOLS, tool_choice=named(name))


def writes(grammar: Any, text: bytes) -> bool:
    """Whether a grammar lets a text be written; it stays where the text stops fitting."""
    for byte in text:
        if grammar.is_terminated or byte not in allowed(grammar):
            return False
        grammar.advance(byte)
    return True


def forced(choice: Any, notation: str = HERMES, **more: Any) -> ToolChoice:
    result = read_tools({"tools": TOOLS, "tool_choice": choice, **more}, notation)
    assert result is not None and result.structured is not None and result.structured.kind == "grammar"
    assert result.tool_format == READ_AS and not result.shows_special
    assert result.prefill == prefill(notation) and result.tools == TOOLS
    return result


def said(result: ToolChoice, text: str) -> tuple[bool, bool]:
    """Return whether a text may be written, and whether the answer may end there."""
    assert result.structured is not None
    grammar = grammar_of(grammar=result.structured.grammar)
    fits = writes(grammar, text.encode())
    return fits, fits and (grammar.is_terminated or EOS in allowed(grammar))


@pytest.mark.parametrize("notation", list(START_MARKERS))
def test_a_forced_answer_is_calls_and_nothing_else(notation: str) -> None:
    word = "parameters" if notation == LLAMA3 else "arguments"
    f, g = f'{{"name": "f", "{word}": {{"x": 5}}}}', f'{{"name": "g", "{word}": {{"on": true}}}}'
    one, any_, single = forced(named("f"), notation), forced("required", notation), forced(
        "required", notation, parallel_tool_calls=False)  # fmt: skip
    assert said(one, f) == said(any_, f) == said(any_, g) == said(single, g) == (True, True)
    assert said(one, g) == said(any_, "Hello") == said(any_, "<tool_call>") == (False, False)
    assert said(any_, f"{f}; {g}; {f}") == (True, True)
    assert said(one, f"{f}; {f}") == said(single, f"{f}; {g}") == (False, False)
    assert said(any_, f'{{"name": "f", "{word}": {{"x": "5"') == (False, False), "arguments follow the schema"
    assert (one.allows_parallel_calls, any_.allows_parallel_calls, single.allows_parallel_calls) == (False, True, False)


@pytest.mark.parametrize("notation", [HERMES, MISTRAL, LLAMA3])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_a_forced_answer_is_it_is_read_as_calls_of_the_tools(notation: str, seed: int) -> None:
    result = forced("required", notation, parallel_tool_calls=bool(seed))
    assert result.structured is not None
    text = written(grammar_of(grammar=result.structured.grammar), at_random(seed)).decode()
    message = ChatDeltaBuilder(ToolCallParser(READ_AS), allows_parallel_calls=result.allows_parallel_calls).message(
        text
    )
    assert message["content"] is None, "no text beside calls"
    for call in message["tool_calls"]:
        arguments = json.loads(call["function"]["arguments"])
        assert set(arguments) == {{"f": "x", "g": "on"}[call["function"]["name"]]}


def test_tools_whose_grammar_cannot_be_are_refused_by_the_name_of_their_field() -> None:
    brackets = tool("f", {**X, "description": "(" * 65})
    assert "deeper than 64" in refused("tools", tools=[brackets], tool_choice="required")
    long = [tool(f"f{number}", {**X, "description": "x" * 30_000}) for number in range(10)]
    assert "262144" in refused("tools", tools=long, tool_choice="required")
    assert read_tools({"tools": [brackets, *long[1:]]}, HERMES), "nothing is forced"


# -- what messages say of calls ----------------------------------------------------------------------------------------


def call(call_id: Any = "c", arguments: Any = "{}", name: Any = "f") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def assistant(*calls: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def response(call_id: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "5"}


USER = {"role": "user", "content": "Hello."}


@pytest.mark.parametrize(
    "messages",
    [
        [USER],
        [USER, {"role": "assistant", "content": "Hi."}],
        [USER, {"role": "assistant", "content": "Hi.", "tool_calls": None}],
        [USER, assistant()],
        [USER, assistant(call()), response("c")],
        [USER, assistant(call("a"), call("b")), response("b"), response("a")],
        [assistant(call("a")), USER, response("a"), response("a")],
        [assistant(call(arguments=' {"x": [1, {"y": null}]} '))],
    ],
)
def test_calls_and_their_answers_are_taken(messages: list[Any]) -> None:
    check_messages(messages)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([response("c")], "messages[0].tool_call_id"),
        ([USER, assistant(call("a")), response("b")], "messages[2].tool_call_id"),
        ([response("a"), assistant(call("a"))], "messages[0].tool_call_id"),
        ([{"role": "user", "content": "x", "tool_calls": [call("a")]}, response("a")], "messages[1].tool_call_id"),
        ([assistant(call()), {"role": "tool", "content": "5"}], "messages[1].tool_call_id"),
        ([assistant(call()), response(None)], "messages[1].tool_call_id"),
        ([assistant(call()), response(["c"])], "messages[1].tool_call_id"),
        ([{**assistant(), "tool_calls": "x"}], "messages[0].tool_calls"),
        ([{**assistant(), "tool_calls": {}}], "messages[0].tool_calls"),
        ([assistant(call(), 5)], "messages[0].tool_calls[1].function.name"),
        ([assistant({"id": "c"})], "messages[0].tool_calls[0].function.name"),
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


@pytest.mark.parametrize(
    "arguments",
    [None, {}, 5, "x", "[]", "5", "null", '"x"', "{", '{"x": }', "{'x': 1}", '{"x": NaN}', '{"x": -Infinity}',
     '{"x": 1e999}', '{"x": "\\ud800"}', '{"x": ' + "[" * 5000 + "]" * 5000 + "}", '{"x": ' + "1" * 5000 + "}", "{}{}"],
)  # fmt: skip
def test_arguments_are_a_json_object_in_a_string(arguments: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_messages([assistant(call(arguments=arguments))])
    assert caught.value.details["param"] == "messages[0].tool_calls[0].function.arguments"
    assert len(caught.value.message) < 200


def test_no_arguments_at_all_are_an_empty_object() -> None:
    messages = [USER, assistant(call("a", ""))]
    check_messages(messages)
    assert parsed_arguments(messages)[1]["tool_calls"][0]["function"]["arguments"] == {}


def test_templates_get_arguments_as_objects() -> None:
    messages = [USER, assistant(call("a", '{"x": 1}'), call("b", '{"n": 100000000000000000000000000}')), response("a")]
    before = orjson.dumps(messages)
    first, second = parsed_arguments(messages)[1]["tool_calls"]
    assert first == {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    assert second["function"]["arguments"] == {"n": 10**26}, "integers of any size stay what they are"
    assert parsed_arguments(messages)[::2] == messages[::2]
    assert orjson.dumps(messages) == before, "the request is not changed"


@pytest.mark.parametrize("calls", [[1], [{}], [None], "x", 5, [call(arguments="{")]])
def test_what_is_no_assistants_call_is_left_as_it_is(calls: Any) -> None:
    messages = [{"role": "user", "content": "x", "tool_calls": calls}, "no message", {"tool_calls": calls}]
    check_messages(messages)
    assert parsed_arguments(messages) == messages


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4) | st.sampled_from(["{}", '{"x": NaN}', "c"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3), max_leaves=6,
)  # fmt: skip
CALL = st.builds(call, JSON, JSON, JSON) | JSON
MESSAGE = (
    st.builds(lambda calls: assistant(*calls), st.lists(CALL, max_size=3))
    | st.builds(response, JSON)
    | st.fixed_dictionaries({"role": JSON, "tool_calls": JSON | st.lists(CALL, max_size=2)})
    | JSON
)


def outcome(read: Any, *given: Any) -> Any:
    """Return what is read, or the error that refuses it."""
    try:
        return read(*given)
    except InvalidRequest as error:
        return error


@given(st.lists(MESSAGE, max_size=4))
def test_messages_that_pass_can_be_parsed(messages: list[Any]) -> None:
    refusal = outcome(check_messages, messages)
    if isinstance(refusal, InvalidRequest):
        assert str(refusal.details["param"]).startswith("messages[")
        return
    for before, after in zip(messages, parsed_arguments(messages), strict=True):
        if isinstance(before, dict) and before.get("role") == "assistant":
            for each in after.get("tool_calls") or []:
                assert isinstance(each["function"]["arguments"], dict)
        else:
            assert after == before


NAME = JSON | st.sampled_from(["f", "g"])


@given(
    st.lists(st.builds(tool, NAME, JSON) | JSON, max_size=3),
    JSON | st.just("required") | st.builds(named, NAME),
    st.sampled_from([*START_MARKERS, None]),
)
def test_any_tools_are_read_or_refused(tools: list[Any], choice: Any, notation: str | None) -> None:
    result = outcome(read_tools, {"tools": tools, "tool_choice": choice}, notation)
    if isinstance(result, InvalidRequest):
        assert str(result.details["param"]).partition("[")[0] in ("tools", "tool_choice")
        return
    assert (result is None) == (not tools)
    assert result is None or result.structured is None or choice not in (None, "auto", "none")

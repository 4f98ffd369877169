"""Tools with every format: nothing is rejected for the model's template, and allowed_tools restrict what is called."""

import json
from dataclasses import replace
from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.core.structured_output import StructuredOutput
from chairlift.llm.build import build_service
from chairlift.server.openai.chat_delta import ChatDeltaBuilder
from chairlift.server.openai.chat_request import read_chat
from chairlift.server.openai.tool_choice import ToolChoice, read_tools
from chairlift.text.chat_template import ChatTemplate
from chairlift.text.reasoning_formats import THINK_TAGS
from chairlift.text.reasoning_parser import ReasoningParser
from chairlift.text.tool_formats.base import ToolFormat
from chairlift.text.tool_formats.detect import TOOL_FORMATS
from chairlift.text.tool_formats.gemma import GEMMA4
from chairlift.text.tool_formats.generic import GENERIC
from chairlift.text.tool_formats.harmony import HARMONY
from chairlift.text.tool_formats.json_calls import COMMAND_A, HERMES, LLAMA3, MISTRAL
from chairlift.text.tool_formats.marked_calls import DEEPSEEK
from support_grammars import EOS, allowed_tokens, grammar_of
from support_server import CHAT, open_server, run
from support_shares import for_each

X = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
EVERY_FORMAT = pytest.mark.parametrize("tool_format", TOOL_FORMATS.values(), ids=list(TOOL_FORMATS))
USER = {"role": "user", "content": "Hello."}
BODY: dict[str, Any] = {"model": "demo", "messages": [USER]}


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": X} | more}


TOOLS = [tool("f"), tool("g"), tool("h")]


def named(name: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed_tools(mode: Any, *names: Any) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]}}


def chosen(choice: Any, tool_format: ToolFormat, **more: Any) -> ToolChoice:
    result = read_tools({"tools": TOOLS, "tool_choice": choice, **more}, tool_format)
    assert result is not None
    return result


def takes(result: ToolChoice, answer: str) -> bool:
    """Whether the grammar takes this as a whole answer."""
    assert result.structured is not None
    output = result.structured
    grammar = grammar_of(grammar=output.grammar, reasoning_prefix=output.reasoning_prefix)
    for byte in answer.encode():
        if grammar.is_terminated or byte not in allowed_tokens(grammar):
            return False
        grammar.advance(byte)
    return grammar.is_terminated or EOS in allowed_tokens(grammar)


def message_of(result: ToolChoice, answer: str) -> dict[str, Any]:
    return ChatDeltaBuilder(result.make_parser(), allows_parallel_calls=result.allows_parallel_calls).message(answer)


@pytest.mark.share(30)
@EVERY_FORMAT
@pytest.mark.parametrize("choice", [None, "auto", "none", "required", named("f"), allowed_tools("auto", "f")])
def test_no_format_rejects_a_choice(tool_format: ToolFormat, choice: Any) -> None:
    result = chosen(choice, tool_format)
    assert (result.make_parser() is None) == (choice == "none") == (result.tools is None)


@pytest.mark.share(8)
@pytest.mark.parametrize("tool_format", [each for each in TOOL_FORMATS.values() if each.notation is None])
def test_a_forced_call_is_bare_json_with_the_formats_keys(tool_format: ToolFormat) -> None:
    result = chosen("required", tool_format)
    answer = f'{{"{tool_format.name_key}": "f", "{tool_format.arguments_key}": {{"x": 1}}}}'
    assert takes(result, answer) and not takes(result, "Hello") and result.prefill == tool_format.prefill
    assert not result.shows_special
    [call] = message_of(result, answer)["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": '{"x": 1}'}


def test_a_forced_call_has_the_models_own_notation_where_it_is_no_json() -> None:
    result = chosen("required", HARMONY)
    answer = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}'
    assert takes(result, answer) and result.prefill == "" and result.shows_special
    assert message_of(result, answer)["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x": 1}'}


@pytest.mark.parametrize("tool_format", [HERMES, LLAMA3, DEEPSEEK])
def test_a_forced_call_of_a_model_that_thinks_has_no_prefill(tool_format: ToolFormat) -> None:
    result = chosen("required", replace(tool_format, follows_reasoning=True))
    answers = {
        HERMES.name: '<tool_call>\n{"name": "f", "arguments": {"x": 1}}',
        LLAMA3.name: '{"name": "f", "parameters": {"x": 1}}',
        DEEPSEEK.name: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
        '{"x": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    }
    answer = answers[tool_format.name]
    assert result.prefill == "" and takes(result, answer)
    assert message_of(result, answer)["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x": 1}'}


def test_a_model_without_a_format_writes_calls_or_a_response() -> None:
    result = chosen("auto", GENERIC)
    call = '{"tool_calls": [{"name": "f", "arguments": {"x": 1}}]}'
    assert takes(result, call) and takes(result, '{"response": "Hello."}') and not takes(result, "Hello.")
    assert not result.is_forced and result.prefill == "" and not result.shows_special and not result.ignores_strict
    assert message_of(result, call)["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x": 1}'}
    assert message_of(result, '{"response": "Hello."}')["content"] == "Hello."
    both = call.replace("]}", ', {"name": "g", "arguments": {"x": 1}}]}')
    assert takes(result, both) and not takes(chosen("auto", GENERIC, parallel_tool_calls=False), both)


def test_a_grammar_of_the_client_leaves_a_model_without_a_format_no_calls() -> None:
    for more in ({"response_format": {"type": "json_object"}}, {"regex": "a"}):
        request = read_chat({**BODY, "tools": TOOLS, **more}, GENERIC)
        assert request.tools == ToolChoice() and request.ignored == ("tools",)
        with pytest.raises(InvalidRequest, match="cannot force a call"):
            read_chat({**BODY, "tools": TOOLS, "tool_choice": "required", **more}, GENERIC)
    assert read_chat({**BODY, "tools": TOOLS, "response_format": {"type": "text"}}, GENERIC).structured_field == "tools"


def test_a_format_with_channels_is_parsed_without_tools() -> None:
    thought = "<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    for more in ({}, {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "none"}):
        request = read_chat({**BODY, **more}, HARMONY)
        assert request.tools is not None and not request.params.skip_special_tokens
        message = message_of(request.tools, thought)
        assert (message["content"], message["reasoning_content"]) == ("Yes.", "So.")
    assert read_chat(BODY, LLAMA3).tools is None


CALLS_OF_CHANNELS = [
    (HARMONY, '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}<|call|>', '{"x": 1}'),
    (COMMAND_A, '<|START_THINKING|>So.<|END_THINKING|><|START_ACTION|>[{"tool_name": "f", "parameters": {}}]',
     '<|START_ACTION|>[{"tool_name": "f", "parameters": {}}]'),
    (GEMMA4, "<|channel>thoughtSo.<channel|><|tool_call>call:f{}<tool_call|>", "<|tool_call>call:f{}<tool_call|>"),
]  # fmt: skip


@for_each(("tool_format", "answer", "text"), CALLS_OF_CHANNELS)
@for_each("more", [{}, {"tools": TOOLS, "tool_choice": "none"}])
def test_without_a_tool_to_call_a_format_with_channels_has_no_calls(
    tool_format: ToolFormat, answer: str, text: str, more: dict[str, Any]
) -> None:
    request = read_chat({**BODY, **more}, tool_format)
    assert request.tools is not None
    message = message_of(request.tools, answer)
    assert "tool_calls" not in message and message["content"] == text
    assert message.get("reasoning_content", "So.") == "So."


@pytest.mark.share(24)
@EVERY_FORMAT
@pytest.mark.parametrize("more", [{"response_format": {"type": "json_object"}}, {"choice": ["to=5"]}])
def test_output_that_the_client_constrains_is_not_parsed(tool_format: ToolFormat, more: dict[str, Any]) -> None:
    tool_format = replace(tool_format, auto_notations=())
    for tools in ({}, {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "none"}):
        request = read_chat({**BODY, **tools, **more}, tool_format)
        assert request.tools is None or request.tools.make_parser() is None
        assert request.params.skip_special_tokens and ("tools" in request.ignored) == (tools == {"tools": TOOLS})


def test_a_client_gets_calls_or_the_json_that_it_constrains() -> None:
    """As the clients of OpenAI do that give an agent tools and an output type."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "required": ["y"]}}}
    call, text = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>', '{"y": "<tool_call>"}'
    for more in ({"response_format": form}, {"response_format": {"type": "json_object"}}, {"guided_json": {}}):
        request = read_chat({**BODY, "tools": TOOLS, **more}, HERMES)
        choice = request.tools
        assert choice is not None and choice.tools == TOOLS and request.ignored == ()
        assert request.params.structured == choice.structured is not None
        assert takes(choice, call) and takes(choice, f"{call}\n{call}") and takes(choice, text)
        assert not takes(choice, "Hello.") and not takes(choice, call.replace('"f"', '"k"'))
        assert takes(choice, "{}") == (more != {"response_format": form})
        assert message_of(choice, call)["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x": 1}'}
        assert message_of(choice, text)["content"] == text
    request = read_chat({**BODY, "tools": TOOLS, "tool_choice": "none", "response_format": form}, HERMES)
    assert request.params.structured is not None and request.params.structured.kind == "json_schema"
    with pytest.raises(InvalidRequest, match="cannot force a call"):
        read_chat({**BODY, "tools": TOOLS, "tool_choice": "required", "response_format": form}, HERMES)
    other = read_chat({**BODY, "tools": TOOLS, "regex": "a"}, HERMES)
    assert other.ignored == ("tools",) and other.params.structured == StructuredOutput(regex="a")


def test_strict_tools_are_enforced_where_the_model_may_choose() -> None:
    tools = [
        tool("f", strict=True),
        tool("g", parameters={"type": "object", "properties": {"l": {"type": "array", "uniqueItems": True}}}),
    ]
    request = read_chat({**BODY, "tools": tools}, HERMES)
    choice = request.tools
    assert choice is not None and choice.structured is not None and request.ignored == () and not choice.is_forced
    call = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'
    for answer in ("", "Hello.", call % ("f", '{"x": 1}'), "Hi " + call % ("g", '{"l": "any", "m": 1}')):
        assert takes(choice, answer), answer
    assert not takes(choice, call % ("f", '{"x": "1"}')) and not takes(choice, call % ("g", "[]"))
    both = "\n".join((call % ("f", '{"x": 1}'), call % ("g", "{}")))
    assert takes(choice, both)
    single = read_chat({**BODY, "tools": tools, "parallel_tool_calls": False}, HERMES).tools
    assert single is not None and not takes(single, both)
    loose = [{**each, "function": {**each["function"], "strict": False}} for each in tools]
    assert read_chat({**BODY, "tools": loose}, HERMES).params.structured is None
    tools[1]["function"]["strict"] = True
    with pytest.raises(InvalidRequest, match="uniqueItems"):
        read_chat({**BODY, "tools": tools}, HERMES)
    assert read_chat({**BODY, "tools": tools}, GEMMA4).ignored == ("tools.function.strict",), "no JSON, no grammar"


CALLS_OF_FORMATS = {
    "llama3": '{"name": "f", "parameters": {"x": 1}}',
    "harmony": '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}',
    "command-a": '<|START_ACTION|>[{"tool_name": "f", "parameters": {"x": 1}}]<|END_ACTION|>',
    "kimi": '<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"x": 1}'
    "<|tool_call_end|><|tool_calls_section_end|>",
    "glm": "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
    "qwen3-coder": "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>",
}


@pytest.mark.share(3)
@pytest.mark.parametrize("name", CALLS_OF_FORMATS)
def test_strict_tools_are_enforced_in_the_models_own_notation(name: str) -> None:
    request = read_chat({**BODY, "tools": [tool("f", strict=True), tool("g")]}, TOOL_FORMATS[name])
    choice, call = request.tools, CALLS_OF_FORMATS[name]
    assert choice is not None and choice.structured is not None and request.ignored == ()
    assert takes(choice, call) and not takes(choice, call.replace("1", '"a"'))
    assert message_of(choice, call)["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x": 1}'}
    free = "<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    assert takes(choice, free if name == "harmony" else "Yes.")
    form = {"response_format": {"type": "json_object"}}
    both = read_chat({**BODY, "tools": TOOLS, **form}, TOOL_FORMATS[name])
    assert (both.ignored == ("tools",)) == (name == "llama3"), "its calls look like other JSON"
    if name in ("glm", "harmony"):
        assert both.tools is not None
        answer = json.dumps({"y": call})
        before = "<|channel|>final<|message|>" if name == "harmony" else ""
        assert takes(both.tools, before + answer) and message_of(both.tools, before + answer)["content"] == answer


@pytest.mark.parametrize("more", [{"continue_final_message": True}, {"add_generation_prompt": False}])
def test_an_answer_that_begins_within_a_message_has_no_grammar_of_messages(more: dict[str, Any]) -> None:
    body = {**BODY, "tools": [tool("f", strict=True)], **more}
    body["messages"] = [USER, {"role": "assistant", "content": "It is"}]
    request = read_chat(body, HARMONY)
    assert request.params.structured is None and request.ignored == ("tools.function.strict",)
    assert read_chat(body, HERMES).params.structured is not None
    for choice in ("required", named("f")):
        with pytest.raises(InvalidRequest, match="within a message") as caught:
            read_chat({**body, "tool_choice": choice}, HARMONY)
        assert caught.value.message.startswith("tool_choice ")
        assert read_chat({**body, "tool_choice": choice}, HERMES).params.structured is not None


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_reasoning_of_channels_contains_no_call(choice: str) -> None:
    """The parser would read a call in it, which no grammar has checked."""
    call = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}'
    request = read_chat({**BODY, "tools": [tool("f", strict=True)], "tool_choice": choice}, HARMONY)
    assert request.tools is not None
    for inner in ("<|start|>assistant", "<|channel|>", "<|start|>assistant" + call.replace("1", '"a"')):
        analysis = "<|channel|>analysis<|message|>So.{}<|end|><|start|>assistant"
        assert takes(request.tools, analysis.format("") + call)
        assert not takes(request.tools, analysis.format(inner) + call), inner


def test_strict_arguments_that_tags_cannot_express_are_not_enforced() -> None:
    properties = {"x": {"type": "string", "pattern": "^a$"}}
    body = {**BODY, "tools": [tool("f", strict=True, parameters={"type": "object", "properties": properties})]}
    request = read_chat(body, TOOL_FORMATS["glm"])
    assert request.params.structured is None and request.ignored == ("tools.function.strict",)
    both = read_chat({**body, "response_format": {"type": "json_object"}}, TOOL_FORMATS["glm"])
    assert both.params.structured == StructuredOutput(json_object=True)
    assert both.ignored == ("tools", "tools.function.strict")


def test_tools_too_large_for_a_grammar_are_offered_without_one() -> None:
    properties = {f"p{number}": {"enum": ["x" * 900]} for number in range(150)}
    for strict in (False, True):
        tools = [tool(name, parameters={"type": "object", "properties": properties}, strict=strict) for name in "fg"]
        result = read_tools({"tools": tools}, GENERIC)
        assert result is not None and result.structured is None and result.ignores_strict == strict
        assert message_of(result, '{"tool_calls": [{"name": "f", "arguments": {}}]}')["tool_calls"]
        with pytest.raises(InvalidRequest, match="tools cannot be enforced"):
            read_tools({"tools": tools, "tool_choice": "required"}, GENERIC)


def test_a_reasoning_model_without_a_format_reasons_before_it_calls() -> None:
    reasoning = replace(GENERIC, is_enforced=False)
    result = chosen("auto", reasoning)
    assert result.structured is None and chosen("required", reasoning).structured is not None
    builder = ChatDeltaBuilder(result.make_parser(), ReasoningParser(THINK_TAGS, is_open=True))
    message = builder.message('So.</think>\n\n{"tool_calls": [{"name": "f", "arguments": {"x": 1}}]}')
    assert message["reasoning_content"] == "So." and message["content"] is None
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x": 1}'}
    assert read_chat({**BODY, "tools": TOOLS, "regex": "a"}, reasoning).tools == ToolChoice()


def test_ids_of_calls_have_the_length_that_the_template_demands() -> None:
    result = chosen("auto", MISTRAL)
    builder = ChatDeltaBuilder(result.make_parser(), num_id_chars=MISTRAL.num_id_chars)
    [call] = builder.message('[TOOL_CALLS][{"name": "f", "arguments": {}}]')["tool_calls"]
    assert len(call["id"]) == 9 and call["id"].isalnum()


@pytest.mark.parametrize("tool_format", [HERMES, GENERIC])
def test_allowed_tools_restrict_what_is_called(tool_format: ToolFormat) -> None:
    free = chosen(allowed_tools("auto", "f", "g"), tool_format)
    forced = chosen(allowed_tools("required", "f", "g"), tool_format)
    assert free.tools == TOOLS[:2] and forced.tools == TOOLS, "without a grammar the model sees only allowed tools"
    assert set(free.schemas) == set(forced.schemas) == {"f", "g"}
    assert (free.is_forced, forced.is_forced) == (False, True)
    calls = [f'{{"name": "{name}", "arguments": {{"x": 1}}}}' for name in "fgh"]
    assert [takes(forced, call) for call in calls] == [True, True, False]
    assert takes(forced, tool_format.separator.join(calls[:2])) and forced.allows_parallel_calls
    if tool_format is GENERIC:
        assert [takes(free, f'{{"tool_calls": [{call}]}}') for call in calls] == [True, True, False]


@for_each(
    ("choice", "message"),
    [
        (allowed_tools("none", "f"), "mode must be auto or required"), (allowed_tools(None, "f"), "mode must be auto"),
        (allowed_tools(["auto"], "f"), "mode must be auto"), (allowed_tools("auto"), "must be 1 to 128 functions"),
        (allowed_tools("auto", *"f" * 129), "must be 1 to 128 functions"), (allowed_tools("auto", "x"), "'x', which"),
        (allowed_tools("auto", 5), "must be none, auto, required or an object"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": {}}}, "must be 1 to 128 functions"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": ["f"]}}, "must be none, auto, required"),
        ({"type": "allowed_tools", "allowed_tools": "f"}, "must be none, auto, required or an object"),
    ],
)  # fmt: skip
def test_allowed_tools_are_a_mode_and_functions_of_the_tools(choice: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        chosen(choice, HERMES)
    assert caught.value.details["param"] == "tool_choice"


CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.mark.full
def test_a_model_whose_template_takes_no_tools_calls_them_and_responds() -> None:
    """The embedded model, with a template that knows neither tools nor their results."""
    service = build_service(None, {})
    assert service.tokenizer is not None
    service = replace(service, chat_template=ChatTemplate({"default": CHAT_TEMPLATE}, service.tokenizer))
    body = {"model": "fake", "messages": [USER], "temperature": 0, "max_tokens": 60, "tools": [WEATHER]}

    async def scenario() -> list[Any]:
        async with open_server(service) as server:
            responses = [
                (await server.http.post(CHAT, json={**body, "tool_choice": choice})).json()
                for choice in ("required", named("get_weather"))
            ]
            call = responses[0]["choices"][0]["message"]["tool_calls"][0]
            result = {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
            again = [USER, {"role": "assistant", "tool_calls": [call]}, result]
            responses.append((await server.http.post(CHAT, json={**body, "messages": again})).json())
            return responses

    *forced, free = [response["choices"][0] for response in run(scenario())]
    for choice in forced:
        assert choice["finish_reason"] in ("tool_calls", "length")
        assert choice["message"]["tool_calls"][0]["function"]["name"] == "get_weather"
    assert free["message"]["content"] or free["message"]["tool_calls"]
    assert not (free["message"]["content"] or "").startswith("{"), "the response is text, not its JSON"

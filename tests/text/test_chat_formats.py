"""Chat formats of each kind of model: what is detected, templates write, parsers read and grammars allow."""

import json
from dataclasses import replace
from typing import Any

import pytest

from chairlift.core.structured_output import StructuredOutput
from chairlift.engine.structured.grammar_matcher import BITS, GrammarMatcher
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer
from chairlift.engine.structured.llguidance_adapter import make_matcher, make_tokenizer, source_of, special_token_ids
from chairlift.server.openai.chat_delta import ChatDeltaBuilder
from chairlift.server.openai.tool_choice import ToolChoice, read_tools
from chairlift.text.chat_messages import ChatMessages
from chairlift.text.chat_template import RenderOptions
from chairlift.text.forced_call_grammar import marker_ids
from chairlift.text.reasoning_formats import ReasoningState
from chairlift.text.reasoning_parser import ReasoningParser
from chairlift.text.template_input import template_input
from chairlift.text.tool_formats.base import ToolFormat
from chairlift.text.tool_formats.detect import detect_tool_format
from support_chat_formats import (
    ARGUMENTS,
    FORMATS,
    PLACE,
    THOUGHT,
    TOOLS,
    chat_template_of,
    tokenizer_of,
    tokens_of_answer,
)
from support_grammars import allowed_tokens, random_pick

EVERY_FORMAT = pytest.mark.parametrize("name", FORMATS)
USER = {"role": "user", "content": "Where?"}
CALLS = [
    {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    for call_id, name, arguments in (("abcdefghi", "look", ARGUMENTS), ("123456789", "stop", {}))
]
ANSWER = {"role": "assistant", "content": None, "reasoning_content": THOUGHT, "tool_calls": CALLS}
RESULTS = [
    {"role": "tool", "tool_call_id": "abcdefghi", "content": "sunny"},
    {"role": "tool", "tool_call_id": "123456789", "content": "so"},
]
LOOPS = [USER, ANSWER, *RESULTS]


def tool_format_of(name: str) -> ToolFormat:
    """Return the format of calls as a server finds it."""
    chat, tokenizer = chat_template_of(name), tokenizer_of(name)
    takes_tools = chat.abilities(with_tools=True).tools
    found = detect_tool_format(chat.text, tokenizer.special_tokens, takes_tools=takes_tools)
    ids = marker_ids(found, lambda text: tokenizer.encode(text, add_special_tokens=False))
    return replace(found, follows_reasoning=chat.reasoning_format is not None, token_ids=ids)


def prompt_of(name: str, messages: list[dict[str, Any]], **options: Any) -> tuple[str, list[int]]:
    """Return the prompt of a conversation, and its tokens."""
    template = chat_template_of(name)
    plain, offered = template_input(ChatMessages.parse(messages, template.text), TOOLS, tool_format_of(name), template)
    rendering = RenderOptions(variables=FORMATS[name].variables, **options)
    prompt = template.render_checked(plain, tools=offered, options=rendering)
    return prompt.text, tokenizer_of(name).encode_chat(prompt)


def choice_of(name: str, **fields: Any) -> ToolChoice:
    choice = read_tools({"tools": TOOLS, **fields}, tool_format_of(name))
    assert choice is not None
    return choice


def read(name: str, choice: ToolChoice, *parts: str) -> dict[str, Any]:
    """Return the message that a client gets of an answer in these parts."""
    reasoning = chat_template_of(name).reasoning_format
    parser = None
    if reasoning is not None and not reasoning.is_read_by_tool_format:
        parser = ReasoningParser(reasoning, is_open=FORMATS[name].begins_open)
    builder = ChatDeltaBuilder(choice.make_parser(), parser, call_key=lambda: b"key")
    deltas = [*(delta for part in parts for delta in builder.push(part)), *builder.finish("")]
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "calls": []}
    for delta in deltas:
        message["content"] += delta.get("content", "")
        message["reasoning_content"] += delta.get("reasoning_content", "")
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                message["calls"].append([call["function"]["name"], ""])
            else:
                message["calls"][-1][1] += call["function"]["arguments"]
    return message


def calls_of(message: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, json.loads(arguments)) for name, arguments in message["calls"]]


@EVERY_FORMAT
def test_the_formats_of_a_model_are_found(name: str) -> None:
    expected, chat = FORMATS[name], chat_template_of(name)
    reasoning = chat.reasoning_format
    assert ("" if reasoning is None else reasoning.name) == expected.reasoning
    assert tool_format_of(name).name == expected.tool_format
    prompt, _ = prompt_of(name, [USER])
    if reasoning is not None:
        state = reasoning.state_after(prompt)
        assert state is (ReasoningState.OPEN if expected.begins_open else ReasoningState.NOT_STARTED)


@EVERY_FORMAT
def test_a_prompt_has_the_reasoning_the_calls_and_the_results_as_the_model_writes_them(name: str) -> None:
    prompt, ids = prompt_of(name, LOOPS)
    at = 0
    for text in FORMATS[name].written:
        assert (at := prompt.find(text, at)) >= 0, (text, prompt)
    for marker, token_id in tokenizer_of(name).special_tokens.items():
        assert ids.count(token_id) == prompt.count(marker), f"each {marker} is a token"


@EVERY_FORMAT
def test_a_marker_in_an_argument_of_an_earlier_call_is_text(name: str) -> None:
    special = FORMATS[name].special
    counts = []
    for place in ("Rome", f"Rome {special[1]}{special[2 % len(special)]}"):
        arguments = json.dumps({"place": place})
        call = {"id": "abcdefghi", "type": "function", "function": {"name": "look", "arguments": arguments}}
        messages = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}, RESULTS[0]]
        _, ids = prompt_of(name, messages)
        counts.append([ids.count(tokenizer_of(name).special_tokens[marker]) for marker in special])
    assert counts[0] == counts[1]


@EVERY_FORMAT
def test_an_answer_is_read_alike_in_characters_in_tokens_and_as_a_whole(name: str) -> None:
    expected, choice = FORMATS[name], choice_of(name)
    whole = read(name, choice, expected.answer)
    assert calls_of(whole) == [("look", ARGUMENTS), ("stop", {})]
    assert whole["content"].strip() == ""
    assert whole["reasoning_content"] == (THOUGHT if expected.reasoning else "")
    assert read(name, choice, *expected.answer) == whole
    assert read(name, choice, *tokens_of_answer(name, expected.answer)) == whole
    for at in range(len(expected.answer)):
        assert read(name, choice, expected.answer[:at], expected.answer[at:]) == whole, expected.answer[:at]


@EVERY_FORMAT
def test_a_cut_answer_has_the_beginning_of_the_reasoning_and_the_calls(name: str) -> None:
    expected, choice = FORMATS[name], choice_of(name)
    whole = read(name, choice, expected.answer)
    for size in range(len(expected.answer)):
        cut = read(name, choice, expected.answer[:size])
        assert whole["reasoning_content"].startswith(cut["reasoning_content"]) or not cut["calls"]
        assert [each for each, _ in cut["calls"]] == [each for each, _ in whole["calls"]][: len(cut["calls"])]
        for index, (_, arguments) in enumerate(cut["calls"][:-1]):
            assert arguments == whole["calls"][index][1]


@EVERY_FORMAT
def test_text_beside_calls_is_content(name: str) -> None:
    if FORMATS[name].tool_format in ("generic", "harmony"):
        return
    marker = {"glm": "<tool_call>", "qwen3-coder": "<tool_call>"}.get(FORMATS[name].tool_format)
    answer = FORMATS[name].answer
    start = marker or next(
        text for text in ("<|tool_call>", "<tool_call>", "<|tool_call|>", "[TOOL_CALLS]", "<|tool_call_start|>",
                          "<function_calls>") if text in answer
    )  # fmt: skip
    before, found, rest = answer.partition(start)
    choice = choice_of(name)
    message = read(name, choice, *f"{before}I see.\n{found}{rest}")
    assert message["content"].strip() == "I see." and len(message["calls"]) == 2
    assert message["reasoning_content"] == (THOUGHT if FORMATS[name].reasoning else "")


def matcher_of(name: str, choice: ToolChoice) -> tuple[GrammarMatcher, int]:
    """Return the matcher of a forced call in the tokens of a model, and the token that ends an answer."""
    tokenizer, reasoning = tokenizer_of(name), chat_template_of(name).reasoning_format
    assert choice.structured is not None
    structured = choice.structured
    if reasoning is not None and structured.reasoning_prefix is None:
        state = ReasoningState.OPEN if FORMATS[name].begins_open else ReasoningState.NOT_STARTED
        structured = StructuredOutput(grammar=structured.grammar, reasoning_prefix=reasoning.prefix_of(state))
    vocabulary = make_tokenizer(
        GrammarTokenizer(tokenizer.serialized().encode(), tokenizer.eos_token_ids), tokenizer.vocab_size
    )
    special_ids = special_token_ids(tokenizer.serialized().encode())
    matcher = make_matcher(source_of(structured, special_ids), vocabulary)
    assert not matcher.is_error(), matcher.get_error()
    return GrammarMatcher(matcher, -(-tokenizer.vocab_size // BITS)), tokenizer.eos_token_ids[0]


def takes(name: str, choice: ToolChoice, answer: str) -> bool:
    """Whether the grammar of forced calls takes this as a whole answer."""
    grammar, eos = matcher_of(name, choice)
    for token in tokenizer_of(name).encode(answer, add_special_tokens=False):
        if grammar.is_terminated or token not in allowed_tokens(grammar):
            return False
        grammar.advance(token)
    return grammar.is_terminated or eos in allowed_tokens(grammar)


@EVERY_FORMAT
@pytest.mark.parametrize("tool_choice", ["required", {"type": "function", "function": {"name": "look"}}])
def test_the_grammar_of_a_forced_call_takes_what_the_parser_reads(name: str, tool_choice: Any) -> None:
    choice = choice_of(name, tool_choice=tool_choice)
    forced = FORMATS[name].forced
    if FORMATS[name].tool_format == "generic":
        forced = '{"name": "look", "arguments": {"place": "Rome", "all": true}}'
        if chat_template_of(name).reasoning_format is None:
            assert choice.prefill == '{"tool_calls": ['
        else:
            forced = '{"tool_calls": [' + forced
    opened = "</think>\n" if FORMATS[name].begins_open else ""
    for thought in (opened, f"{THOUGHT}{opened}") if opened else ("",):
        assert takes(name, choice, thought + forced), thought + forced
        for parts in ((thought + forced,), tuple(thought + forced), tokens_of_answer(name, thought + forced)):
            message = read(name, choice, *parts)
            assert calls_of(message) == [("look", {"place": "Rome", "all": True})]
            assert message["content"] == ""
    for wrong in (forced.replace("look", "hook"), forced.replace("true", "maybe"), "Hello"):
        assert not takes(name, choice, opened + wrong), wrong


@EVERY_FORMAT
@pytest.mark.parametrize("seed", range(3))
def test_whatever_the_grammar_of_forced_calls_allows_is_read(name: str, seed: int) -> None:
    """Calls of one of the tools with the types that the schemas name, and no text beside them."""
    choice = choice_of(name, tool_choice="required")
    grammar, eos = matcher_of(name, choice)
    tokenizer, pick = tokenizer_of(name), random_pick(seed)
    ids: list[int] = []
    if FORMATS[name].begins_open:
        ids = tokenizer.encode("</think>", add_special_tokens=False)
    for token in ids:
        grammar.advance(token)
    while not grammar.is_terminated and len(ids) < 600:
        allowed = sorted(allowed_tokens(grammar))
        token = eos if eos in allowed else pick(allowed)
        if token == eos:
            break
        grammar.advance(token)
        ids.append(token)
    text = tokenizer.decode(ids, skip_special_tokens=False)
    message = read(name, choice, *text)
    assert read(name, choice, text) == message
    if grammar.is_terminated or eos in allowed_tokens(grammar):
        assert message["content"].strip() == "" and message["calls"]
        for each, arguments in calls_of(message):
            assert each in ("look", "stop") and isinstance(arguments, dict)
            if each == "look":
                assert isinstance(arguments["place"], str) and isinstance(arguments.get("days", 0), int)
                assert isinstance(arguments.get("all", True), bool) and isinstance(arguments.get("more", {}), dict)


def test_strings_with_quotes_that_a_template_does_not_escape_are_read() -> None:
    choice = choice_of("lfm-2.5")
    answer = "<|tool_call_start|>[look(place='it's \"near\"', days=2)]<|tool_call_end|>"
    for parts in ((answer,), tuple(answer)):
        assert calls_of(read("lfm-2.5", choice, *parts)) == [("look", {"place": 'it\'s "near"', "days": 2})]


def test_text_beside_calls_does_not_end_the_turn_in_which_gemma_4_goes_on() -> None:
    """Its template writes such text behind the results, and the end of the turn behind it."""
    for reasoning in ("", THOUGHT):
        called = {**ANSWER, "content": "I see.", "reasoning_content": reasoning}
        prompt, _ = prompt_of("gemma-4", [USER, called, *RESULTS])
        assert "I see." in prompt and prompt.endswith("<tool_response|>"), prompt
    plain, _ = prompt_of("gemma-4", LOOPS)
    assert plain.endswith("<tool_response|>") and PLACE in plain


def test_reasoning_of_ministral_is_a_part_of_the_answer() -> None:
    messages = [USER, {"role": "assistant", "content": "There.", "reasoning_content": THOUGHT}, USER]
    prompt, _ = prompt_of("ministral-3", messages)
    assert f"[THINK]{THOUGHT}[/THINK]There.</s>" in prompt
    assert chat_template_of("ministral-3").abilities(with_tools=True).reasoning_parts
    assert not any(
        chat_template_of(name).abilities(with_tools=tools).reasoning_parts
        for name in FORMATS for tools in (True, False) if name != "ministral-3"
    )  # fmt: skip

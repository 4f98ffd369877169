"""optional_call_grammar: any text, and enforced calls behind the first marker, as the format's parser reads them."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from chairlift.core.structured_output import StructuredOutput
from chairlift.engine.structured.grammar import BITS, Grammar
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer
from chairlift.engine.structured.llguidance_source import make_matcher, make_tokenizer, source_of
from chairlift.text.reasoning_formats import THINK_TAGS, ReasoningState
from chairlift.text.tokenizer import ByteTokenizer
from chairlift.text.tool_formats.base import ToolFormat
from chairlift.text.tool_formats.deepseek import DEEPSEEK, DEEPSEEK_V31
from chairlift.text.tool_formats.detect import TOOL_FORMATS
from chairlift.text.tool_formats.json_calls import HERMES, MISTRAL, MISTRAL_ARGS, PHI4
from chairlift.text.tool_grammar import marker_ids, optional_call_grammar
from support_grammars import EOS, VOCAB_SIZE, allowed_tokens
from support_tool_formats import merged, push_all

INTEGER = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
TOOLS: Mapping[str, Any] = {"f": INTEGER, "g": {"type": "object"}}
F, G = ("f", '{"x": 1}'), ("g", '{"any": [1, "}"]}')
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
MARKERS = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|tool_call|>", "<|/tool_call|>", "<think>",
           "</think>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
           "<｜tool▁calls▁end｜>")  # fmt: skip
BACKEND = Backend.from_str(ByteTokenizer().serialized())
BACKEND.add_tokens([AddedToken(marker, special=not marker.startswith("<t")) for marker in MARKERS])
IDS = {marker: BACKEND.token_to_id(marker) for marker in MARKERS}
PLAIN = ByteTokenizer()
TOKENIZER = make_tokenizer(GrammarTokenizer(BACKEND.to_str().encode(), (EOS,)), VOCAB_SIZE + len(MARKERS))


def encode(text: str) -> list[int]:
    return list(BACKEND.encode(text, add_special_tokens=False).ids)


def json_call(name: str, arguments: str) -> str:
    return f'{{"name": "{name}", "arguments": {arguments}}}'


def calls_of(tool_format: ToolFormat, *calls: tuple[str, str]) -> str:
    """Return calls as a model of this format writes them."""
    objects = [json_call(*each) for each in calls]
    if tool_format is HERMES:
        return "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in objects)
    if tool_format is MISTRAL_ARGS:
        return "".join(f"[TOOL_CALLS]{name}[ARGS]{arguments}" for name, arguments in calls)
    if tool_format in (MISTRAL, PHI4):
        begin, end = ("[TOOL_CALLS]", "") if tool_format is MISTRAL else ("<|tool_call|>", "<|/tool_call|>")
        return f"{begin}[{', '.join(objects)}]{end}"
    sep = "<｜tool▁sep｜>"
    if tool_format is DEEPSEEK:
        parts = [f"function{sep}{name}\n```json\n{arguments}\n```" for name, arguments in calls]
    else:
        parts = [f"{name}{sep}{arguments}" for name, arguments in calls]
    between = "\n" if tool_format is DEEPSEEK else ""
    inner = between.join(f"<｜tool▁call▁begin｜>{part}<｜tool▁call▁end｜>" for part in parts)
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


def compiled(
    tool_format: ToolFormat, *, tokens: bool = True, state: ReasoningState | None = None, **options: Any
) -> Grammar:
    ids = marker_ids(tool_format, encode if tokens else PLAIN.encode)
    grammar = optional_call_grammar(replace(tool_format, token_ids=ids), TOOLS, **{"several": True, **options})
    prefix = None if state is None else THINK_TAGS.prefix_of(state)
    source = source_of(StructuredOutput(grammar=grammar, reasoning_prefix=prefix), IDS if tokens else {})
    matcher = make_matcher(source, TOKENIZER)
    assert not matcher.is_error(), matcher.get_error()
    return Grammar(matcher, -(-TOKENIZER.vocab_size // BITS))


def takes(
    tool_format: ToolFormat, text: str, *, tokens: bool = True, state: ReasoningState | None = None, **options: Any
) -> bool:
    """Whether the text can be the whole output; the markers are tokens, or text like any other."""
    followed = compiled(tool_format, tokens=tokens, state=state, **options)
    for token in encode(text) if tokens else list(text.encode()):
        if followed.is_terminated or token not in allowed_tokens(followed):
            return False
        followed.advance(token)
    return followed.is_terminated or EOS in allowed_tokens(followed)


FORMATS = (HERMES, MISTRAL, MISTRAL_ARGS, PHI4, DEEPSEEK, DEEPSEEK_V31)
CASES = [(each, tokens) for each in FORMATS for tokens in (True, False)]
EVERY_CASE = pytest.mark.parametrize(("tool_format", "tokens"), CASES)
TEXTS = (
    "",
    "Hello.",
    "\n\nTwo <b> [lines]\n",
    '{"name": "f", "arguments": {"x": "?"}}',
    "<tool_cal",
    "é 😀 [TOOL_CALL",
)


@EVERY_CASE
def test_an_answer_without_a_call_is_any_text(tool_format: ToolFormat, tokens: bool) -> None:
    for text in TEXTS:
        assert takes(tool_format, text, tokens=tokens), text


@EVERY_CASE
def test_calls_are_enforced_behind_any_text_and_read(tool_format: ToolFormat, tokens: bool) -> None:
    for text in TEXTS[:3]:
        for calls in ((F,), (G,), (F, G, F)):
            answer = text + calls_of(tool_format, *calls)
            assert takes(tool_format, answer, tokens=tokens), answer
            assert takes(tool_format, answer, tokens=tokens, several=False) == (len(calls) == 1)
            result = merged(push_all(tool_format.make_parser(TOOLS), *answer))
            assert result.calls == calls and result.text.strip() == text.strip()
    for bad in (("f", '{"x": "1"}'), ("f", "{}"), ("h", "{}"), ("g", "[]"), ("", "{}")):
        assert not takes(tool_format, f"Hi {calls_of(tool_format, bad)}", tokens=tokens), bad
    whole = calls_of(tool_format, F)
    for bad_text in (whole + "more", whole[:-1], whole[: len(whole) // 2], whole.replace('"x"', '"y"')):
        assert not takes(tool_format, bad_text, tokens=tokens), bad_text


@pytest.mark.parametrize("tool_format", FORMATS)
def test_a_marker_is_not_spelled_in_other_tokens(tool_format: ToolFormat) -> None:
    followed = compiled(tool_format)
    answer = calls_of(tool_format, F).encode()
    num_allowed = 0
    while answer[num_allowed] in allowed_tokens(followed):
        followed.advance(answer[num_allowed])
        num_allowed += 1
    assert 0 < num_allowed < len(answer.partition(b">")[0]) + 1


@EVERY_CASE
def test_the_model_may_reason_first(tool_format: ToolFormat, tokens: bool) -> None:
    call = calls_of(tool_format, F)
    bad = calls_of(tool_format, ("f", '{"x": "1"}'))
    options: dict[str, Any] = {"tokens": tokens, "state": ReasoningState.OPEN}
    for thought in ("so</think>", "so\n</think>\n\n"):
        for answer in ("Hello.", "", call, f"I look.\n{call}"):
            assert takes(tool_format, thought + answer, **options)
            assert takes(tool_format, f"<think>{thought}{answer}", **{**options, "state": ReasoningState.NOT_STARTED})
        assert not takes(tool_format, thought + bad, **options)
        assert not takes(tool_format, f"<think>{thought}{bad}", **{**options, "state": ReasoningState.NOT_STARTED})
    assert takes(tool_format, call, **{**options, "state": ReasoningState.NOT_STARTED})
    assert not takes(tool_format, "so", **options)


@EVERY_CASE
def test_an_answer_is_a_call_or_has_the_schema(tool_format: ToolFormat, tokens: bool) -> None:
    options: dict[str, Any] = {"tokens": tokens, "answer": CITY}
    for answer in (calls_of(tool_format, F), calls_of(tool_format, G, F), json.dumps({"city": "<tool_cal"})):
        assert takes(tool_format, answer, **options), answer
        state = ReasoningState.OPEN
        assert takes(tool_format, f"so</think>\n{answer}", state=state, **options)
    for wrong in ("", "Hello", "{}", '{"city": 1}', calls_of(tool_format, ("f", "{}")), "I look. " + json.dumps(F)):
        assert not takes(tool_format, wrong, **options), wrong


def test_every_such_notation_begins_with_a_marker() -> None:
    for tool_format in TOOL_FORMATS.values():
        if tool_format.auto_notation is not None:
            compiled(tool_format), compiled(tool_format, tokens=False)

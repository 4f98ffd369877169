"""tool_call_grammar: forced calls in a model's own notation, with its special tokens, after its reasoning."""

from dataclasses import replace
from typing import Any

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from chairlift.core.structured_output import StructuredOutput
from chairlift.engine.structured.grammar_matcher import BITS, GrammarMatcher
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer
from chairlift.engine.structured.llguidance_adapter import make_matcher, make_tokenizer, source_of
from chairlift.text.byte_tokenizer import ByteTokenizer
from chairlift.text.forced_call_grammar import marker_ids, reasoning_prefix, tool_call_grammar
from chairlift.text.reasoning_formats import THINK_TAGS, ReasoningState
from chairlift.text.tool_formats.base import ToolFormat
from chairlift.text.tool_formats.detect import TOOL_FORMATS
from chairlift.text.tool_formats.harmony import HARMONY
from chairlift.text.tool_formats.json_calls import HERMES, MISTRAL
from chairlift.text.tool_formats.marked_calls import DEEPSEEK, DEEPSEEK_V31
from support_grammars import EOS, VOCAB_SIZE, allowed_tokens, grammar_of
from support_shares import for_each
from support_tool_formats import Merged, merged, push_all

INTEGER = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
TOOLS = {"f": INTEGER, "g": {"type": "object", "additionalProperties": False}}
F, G = ("f", '{"x": 1}'), ("g", "{}")


def accepts(grammar: GrammarMatcher, tokens: list[int]) -> bool:
    """Whether the tokens can be the whole output."""
    for token in tokens:
        if grammar.is_terminated or token not in allowed_tokens(grammar):
            return False
        grammar.advance(token)
    return grammar.is_terminated or EOS in allowed_tokens(grammar)


def takes(tool_format: ToolFormat, answer: str, *, several: bool = True, is_thinking: bool = False) -> bool:
    return accepts(
        grammar_of(**output_of(tool_format, several=several, is_thinking=is_thinking)), list(answer.encode())
    )


def output_of(tool_format: ToolFormat, *, several: bool = True, is_thinking: bool = False) -> dict[str, Any]:
    """Return the fields of the structured output that a chat request has."""
    prefix = reasoning_prefix(tool_format)
    if prefix is None and tool_format.follows_reasoning:
        prefix = THINK_TAGS.prefix_of(ReasoningState.OPEN if is_thinking else ReasoningState.NOT_STARTED)
    return {"grammar": tool_call_grammar(tool_format, TOOLS, several=several), "reasoning_prefix": prefix}


def v3(name: str, arguments: str) -> str:
    return f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"


def v31(name: str, arguments: str) -> str:
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"


BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
ANALYSIS = "<|channel|>analysis<|message|>I must\nlook.<|end|><|start|>assistant"
COMMENTARY = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{}"


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("tool_format", "answer", "expected"),
    [
        (DEEPSEEK, BEGIN + v3(*F) + END, Merged("", (F,))),
        (DEEPSEEK, f"{BEGIN}{v3(*F)}\n{v3(*G)}{END}", Merged("", (F, G))),
        (DEEPSEEK_V31, BEGIN + v31(*G) + END, Merged("", (G,))),
        (DEEPSEEK_V31, BEGIN + v31(*F) + v31(*G) + END, Merged("", (F, G))),
        (HARMONY, COMMENTARY.format(*F), Merged("", (F,))),
        (HARMONY, ANALYSIS + COMMENTARY.format(*G), Merged("", (G,), "I must\nlook.")),
    ],
)
def test_a_forced_call_has_the_notation_that_the_format_reads(
    tool_format: ToolFormat, answer: str, expected: Merged
) -> None:
    assert takes(tool_format, answer)
    assert takes(tool_format, answer, several=False) == (len(expected.calls) == 1)
    assert merged(push_all(tool_format.make_parser(TOOLS), *answer)) == expected
    for wrong in (answer[1:], answer + "x", answer.replace('"x": 1', '"y": 1').replace("{}", '{"y": 1}'),
                  '{"name": "f", "arguments": {"x": 1}}', "Hello"):  # fmt: skip
        assert not takes(tool_format, wrong), wrong


def test_an_answer_of_gpt_oss_has_one_call() -> None:
    call = COMMENTARY.format(*F)
    assert not takes(HARMONY, call + call) and not takes(HARMONY, f"{call}<|call|><|start|>assistant{call}")


def test_markers_that_are_tokens_stand_in_the_grammar_as_tokens() -> None:
    """The same text in other tokens is refused, and so is a token in the text of the reasoning."""
    markers = ["<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|constrain|>"]
    backend = Backend.from_str(ByteTokenizer().serialized())
    backend.add_tokens([AddedToken(marker, special=index % 2 == 0) for index, marker in enumerate(markers)])
    serialized = backend.to_str()
    tool_format = replace(
        HARMONY, token_ids=marker_ids(HARMONY, lambda text: backend.encode(text, add_special_tokens=False).ids)
    )
    ids = {marker: backend.token_to_id(marker) for marker in markers}
    assert tool_format.token_ids == ids
    vocabulary = make_tokenizer(GrammarTokenizer(serialized.encode(), (EOS,)), VOCAB_SIZE + len(markers))
    source = source_of(StructuredOutput(**output_of(tool_format)), ids)

    def grammar() -> GrammarMatcher:
        return GrammarMatcher(make_matcher(source, vocabulary), -(-vocabulary.vocab_size // BITS))

    answer = ANALYSIS + COMMENTARY.format(*F)
    tokens = backend.encode(answer, add_special_tokens=False).ids
    assert accepts(grammar(), tokens) and not accepts(grammar(), list(answer.encode()))
    wrong = backend.encode(answer.replace("must", "<|start|>"), add_special_tokens=False).ids
    assert not accepts(grammar(), wrong)


OPEN, CLOSE = "<think>", "</think>"
THINKING = replace(HERMES, follows_reasoning=True)
CALL = '{"name": "f", "arguments": {"x": 1}}'


@pytest.mark.parametrize("space", ["", "\n\n"])
def test_a_model_that_thinks_may_reason_before_a_forced_call(space: str) -> None:
    call, thought = f"<tool_call>\n{CALL}", f'so {{"a\n</thin\n{CLOSE}{space}'
    assert takes(THINKING, f"{OPEN}{thought}{call}") and takes(THINKING, f"{call}; {CALL}")
    assert takes(THINKING, thought + call, is_thinking=True) and takes(THINKING, CLOSE + call, is_thinking=True)
    for wrong in (thought + call, OPEN + call, CALL, f"{OPEN}{thought}Hello", f"{OPEN}{thought}", f"x{call}"):
        assert not takes(THINKING, wrong), wrong
    for wrong in (call, thought, f"{thought}Hello"):
        assert not takes(THINKING, wrong, is_thinking=True), wrong


@for_each("name", TOOL_FORMATS)
def test_forced_calls_after_reasoning_are_read(name: str) -> None:
    tool_format = replace(TOOL_FORMATS[name], follows_reasoning=True)
    if tool_format.notation is not None or not tool_format.prefill:
        return
    calls = [f'{{"{tool_format.name_key}": "{each}", "{tool_format.arguments_key}": {text}}}' for each, text in (F, G)]
    answer = tool_format.prefill + tool_format.separator.join(calls)
    assert takes(tool_format, f"so{CLOSE}{answer}", is_thinking=True)
    assert merged(push_all(tool_format.make_parser(TOOLS), *answer)) == Merged("", (F, G))


def test_only_markers_that_are_one_token_have_ids() -> None:
    ids = {"[TOOL_CALLS]": [5], "<tool_call>": [7, 8]}
    ids |= {"</tool_call>": [9], "<|python_tag|>": [3]}
    assert marker_ids(MISTRAL, ids.__getitem__) == {"[TOOL_CALLS]": 5}
    assert marker_ids(HERMES, ids.__getitem__) == {"</tool_call>": 9}
    assert marker_ids(TOOL_FORMATS["llama3"], ids.__getitem__) == {"<|python_tag|>": 3}
    assert marker_ids(TOOL_FORMATS["pythonic"], ids.__getitem__) == {}

"""add_reasoning_prefix: free reasoning, then the structured output, whether the markers are tokens or text."""

import json
from functools import cache

import pytest
from tokenizers import AddedToken, Tokenizer

from chairlift.core.structured_output import ReasoningPrefix, StructuredOutput
from chairlift.engine.structured.grammar import BITS, Grammar
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer
from chairlift.engine.structured.llguidance_source import make_matcher, make_tokenizer, source_of, special_token_ids
from support_grammars import EOS, allowed_tokens, generate_output, grammar_of, random_pick
from support_text import byte_level

THINK = ReasoningPrefix(starts=("<think>",), ends=("</think>",))
OPEN = ReasoningPrefix(starts=("<think>",), ends=("</think>",), is_open=True)
SPOKEN = ReasoningPrefix(starts=("Here is my thought process:", "Thoughts:"), ends=("Here is my response:", "Reply:"))
HARMONY = ReasoningPrefix(
    starts=("<|channel|>analysis<|message|>",), ends=("<|end|><|start|>assistant",),
    answer_start="<|channel|>final<|message|>",
)  # fmt: skip


@cache
def backend() -> Tokenizer:
    """Return a tokenizer with the marks of several models."""
    names = ["<|eos|>", "<|channel|>", "<|message|>", "<|end|>", "<|start|>", "[THINK]", "[/THINK]"]
    tokenizer = byte_level(names, [])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ("<think>", "</think>", "<tool_call>")])
    return tokenizer


class CompiledOutput:
    """A structured output behind a reasoning prefix, compiled for `backend`."""

    def __init__(self, prefix: ReasoningPrefix, **structure: object) -> None:
        vocabulary = GrammarTokenizer(backend().to_str().encode(), (backend().token_to_id("<|eos|>"),))
        tokenizer = make_tokenizer(vocabulary, backend().get_vocab_size())
        structured = StructuredOutput(**structure, reasoning_prefix=prefix)
        self.matcher = make_matcher(source_of(structured, special_token_ids(vocabulary.tokenizer_json)), tokenizer)
        assert not self.matcher.is_error(), self.matcher.get_error()
        self.grammar = Grammar(self.matcher, -(-tokenizer.vocab_size // BITS))

    def try_end(self, token_ids: list[int]) -> bool:
        """Return whether the tokens are a complete output."""
        count = self.matcher.try_consume_tokens(token_ids)
        return count == len(token_ids) and bool(self.matcher.is_accepting())


def matches(prefix: ReasoningPrefix, text: str, **structure: object) -> bool:
    """Return whether the whole text, in which special tokens are tokens, is an output."""
    return CompiledOutput(prefix, **structure).try_end(backend().encode(text).ids)


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
STRUCTURES = [
    ({"json_schema": SCHEMA}, '{"a": 1}', '{"b": 1}'),
    ({"json_object": True}, '{"x": [1]}', "[1]"),
    ({"choice": ("yes", "no")}, "no", "maybe"),
    ({"regex": r"[a-c]{3}"}, "abc", "abd"),
    ({"grammar": 'start: "x" NAME\nNAME: /[a-z]{2}/'}, "xyz", "yyz"),
    ({"grammar": 'root ::= ("hi" | "hello") " " [A-Z]'}, "hi A", "hi a"),
]


@pytest.mark.parametrize(("structure", "good", "bad"), STRUCTURES)
def test_each_kind_holds_behind_the_reasoning(structure: dict[str, object], good: str, bad: str) -> None:
    thought = 'Is it {"b": 1}? 中文 🚡\nNo.'
    for prefix, before in (
        (THINK, f"<think>{thought}</think>"), (OPEN, f"{thought}</think>"), (THINK, f"<think>{thought}</think>\n\n"),
        (THINK, ""), (THINK, "<think></think>"), (OPEN, "</think>\n"),
        (SPOKEN, f"Thoughts:{thought} Here is my response:\n"), (SPOKEN, ""),
        (HARMONY, f"<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant<|channel|>final<|message|>"),
        (HARMONY, "<|channel|>final<|message|>"),
    ):  # fmt: skip
        assert matches(prefix, before + good, **structure), before
        assert not matches(prefix, before + bad, **structure), before


@pytest.mark.parametrize("prefix", [THINK, OPEN, SPOKEN, HARMONY])
def test_an_output_does_not_end_within_the_reasoning(prefix: ReasoningPrefix) -> None:
    start = "" if prefix.is_open else prefix.starts[0]
    compiled = CompiledOutput(prefix, choice=("yes", "no"))
    assert compiled.matcher.consume_tokens(backend().encode(f"{start}yes yes no").ids)
    assert backend().token_to_id("<|eos|>") not in allowed_tokens(compiled.grammar)


def test_an_open_reasoning_may_not_be_left_out() -> None:
    assert not matches(OPEN, "yes", choice=("yes", "no"))
    assert matches(THINK, "yes", choice=("yes", "no"))


def test_reasoning_does_not_spell_its_end_or_a_special_token() -> None:
    ordinary = [token for text in ("</", "think", ">", "yes") for token in backend().encode(text).ids]
    assert not CompiledOutput(OPEN, choice=("yes", "no")).try_end(ordinary)
    assert backend().token_to_id("<|start|>") not in allowed_tokens(CompiledOutput(OPEN, choice=("yes", "no")).grammar)
    assert CompiledOutput(OPEN, choice=("yes", "no")).try_end(backend().encode("a </ think> b</think>no").ids)


EXCLUDED = ReasoningPrefix(
    starts=("<|channel|>analysis<|message|>",), ends=("<|end|><|start|>assistant",),
    answer_start="<|channel|>final<|message|>", excluded=("<|start|>", "<|end|>", "note:"),
)  # fmt: skip


def test_reasoning_does_not_contain_what_begins_another_message() -> None:
    """The markers are tokens, or text like any other."""
    parts = EXCLUDED.starts[0], EXCLUDED.ends[0] + EXCLUDED.answer_start + "yes"
    grammar = grammar_of(choice=("yes", "no"), reasoning_prefix=EXCLUDED)
    for thought, is_allowed in (
        ("so", True), ("", True), ("<|start> not", True), ("a note: b", False),
        ("<|start|>", False), ("<|end|> x", False),
    ):  # fmt: skip
        tokens = [*backend().encode(parts[0]).ids, *ordinary(thought), *backend().encode(parts[1]).ids]
        assert CompiledOutput(EXCLUDED, choice=("yes", "no")).try_end(tokens) == is_allowed, thought
        followed = grammar.copy()
        for byte in thought.join(parts).encode():
            if byte not in allowed_tokens(followed):
                break
            followed.advance(byte)
        assert followed.is_terminated == is_allowed, thought


def ordinary(text: str) -> list[int]:
    """Return the tokens of a text without special tokens."""
    return [token for char in text for token in backend().encode(char).ids]


def test_the_first_end_in_text_ends_the_reasoning() -> None:
    assert not matches(SPOKEN, "Thoughts: a Reply: b Reply:yes", choice=("yes", "no"))
    assert matches(SPOKEN, "Thoughts: a Reply:yes", choice=("yes", "no"))


def test_a_call_behind_the_reasoning_begins_with_its_marker() -> None:
    prefix = ReasoningPrefix(starts=("<think>",), ends=("</think>",), answer_start="\n<tool_call>\n")
    call = '{"name": "f", "arguments": {}}'
    grammar = f"start: {json.dumps(call)}"
    assert matches(prefix, f"<think>hm</think>\n<tool_call>\n{call}", grammar=grammar)
    assert matches(prefix, f"\n<tool_call>\n{call}", grammar=grammar)
    assert not matches(prefix, f"<think>hm</think>{call}", grammar=grammar)


def test_markers_that_no_tokenizer_knows_are_followed_as_text() -> None:
    """Over single bytes every mark is text; random outputs always have the form."""
    grammar = grammar_of(regex="[ab]{2}", reasoning_prefix=OPEN)
    assert EOS not in allowed_tokens(grammar)
    for text in (b"x</think>\nab", b"</think>ba"):
        one = grammar.copy()
        for token in text:
            one.advance(token)
        assert one.is_terminated
    one = grammar.copy()
    for token in b"many </thin words</think":
        one.advance(token)
    one.advance(ord(">"))
    assert allowed_tokens(one) == {ord("a"), ord("b"), ord("\n"), ord("\r")}
    assert generate_output(one, random_pick(1)).lstrip() in {b"aa", b"ab", b"ba", b"bb"}


def test_choices_resume_and_copy_within_their_reasoning() -> None:
    grammar = grammar_of(choice=("yes", "no"), reasoning_prefix=THINK).resume(b"<think>I say no")
    other = grammar.copy()
    for token in b"</think>no":
        other.advance(token)
    assert other.is_terminated and not grammar.is_terminated
    assert not grammar.resume(b"</think>").is_terminated

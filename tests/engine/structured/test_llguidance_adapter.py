"""llguidance source: each kind of structured output is enforced; unsupported keywords are rejected, not ignored."""

import json
import re
from functools import cache

import pytest
from tokenizers import AddedToken, Tokenizer

from chairlift.core.structured_output import ReasoningPrefix, StructuredOutput
from chairlift.engine.structured.grammar_matcher import BITS, GrammarMatcher
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer
from chairlift.engine.structured.llguidance_adapter import (
    make_matcher,
    make_tokenizer,
    rename_special_tokens,
    source_of,
    special_token_ids,
)
from chairlift.text.byte_tokenizer import ByteTokenizer
from support_grammars import EOS, VOCAB_SIZE, VOCABULARY, allowed_tokens, generate_output, grammar_of, random_pick
from support_shares import for_each
from support_text import byte_level


@pytest.mark.full
def test_a_choice_is_one_of_the_strings_whatever_is_in_them() -> None:
    choices = ("yes", "no", "yes and no", 'a "quoted" one', "back\\slash", "new\nline", "Ärger 🚡", "/regex/", "a|b")
    outputs = {generate_output(grammar_of(choice=choices), random_pick(seed)).decode() for seed in range(60)}
    assert outputs == set(choices)
    every = "".join(map(chr, range(1, 127)))
    texts = (every, *(f"x{character}y" for character in every))
    grammar = grammar_of(choice=texts)
    for text in texts:
        one = grammar.copy()
        for token in text.encode():
            one.advance(token)
        assert one.is_terminated


def test_thousands_of_choices_are_followed() -> None:
    grammar = grammar_of(choice=[f"choice {number}" for number in range(20_000)])
    assert re.fullmatch(r"choice \d{1,5}", generate_output(grammar, random_pick(3)).decode())


def test_a_choice_that_begins_another_may_end_there() -> None:
    grammar = grammar_of(choice=("a", "ab"))
    assert allowed_tokens(grammar) == {ord("a")}
    grammar.advance(ord("a"))
    assert allowed_tokens(grammar) == {ord("b"), EOS} and not grammar.is_terminated
    grammar.advance(ord("b"))
    assert grammar.is_terminated


def test_a_regex_is_the_whole_output() -> None:
    pattern = r"(\d{3}-)?[a-f]{2,5}(!|\?)"
    for seed in range(40):
        assert re.fullmatch(pattern, generate_output(grammar_of(regex=pattern), random_pick(seed)).decode())


@pytest.mark.parametrize(
    "grammar",
    [
        'start: greeting " " NAME\ngreeting: "hi" | "hello"\nNAME: /[A-Z][a-z]{1,4}/',
        'root ::= ("hi" | "hello") " " [A-Z] [a-z] [a-z]?',
    ],
)
def test_a_grammar_may_be_lark_or_ebnf(grammar: str) -> None:
    for seed in range(20):
        assert re.fullmatch(
            r"(hi|hello) [A-Z][a-z]{1,4}", generate_output(grammar_of(grammar=grammar), random_pick(seed)).decode()
        )


def test_any_json_object_parses() -> None:
    for seed in range(10):
        grammar, pick, output = grammar_of(json_object=True), random_pick(seed), bytearray()
        while not grammar.is_terminated and len(output) < 3000:
            choices = sorted(allowed_tokens(grammar))
            closing = [token for token in choices if token in b'}]"']
            token = pick(closing if closing and len(output) > 30 else choices)
            grammar.advance(token)
            output.append(token)
        assert isinstance(json.loads(output), dict)


def test_white_space_in_json_has_an_end() -> None:
    grammar = grammar_of(json_schema={"type": "object", "properties": {}, "additionalProperties": False})
    grammar.advance(ord("{"))
    count = 0
    while ord(" ") in allowed_tokens(grammar):
        grammar.advance(ord(" "))
        count += 1
    assert 20 <= count <= 100


def rejection(structured: StructuredOutput) -> str:
    try:
        matcher = make_matcher(source_of(structured), make_tokenizer(VOCABULARY, VOCAB_SIZE))
    except ValueError as error:
        return str(error) or "rejected"
    assert matcher.is_error()
    return matcher.get_error()


@for_each(
    ("structure", "message"),
    [
        ({"json_schema": {"type": "banana"}}, "banana"), ({"json_schema": {"not": {}}}, "not"),
        ({"json_schema": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"json_schema": {"$ref": "http://example.invalid/schema"}}, "example.invalid"),
        ({"json_schema": {"$ref": "#/absent"}}, ""), ({"json_schema": False}, "false"),
        ({"json_schema": {"oneOf": [{"type": "string"}, {"type": "string"}]}}, "/oneOf allows no value"),
        ({"regex": "(("}, "unclosed"), ({"regex": "(?=a)b"}, "look"), ({"regex": r"(a)\1"}, "backref"),
        ({"grammar": "start: absent"}, "absent"), ({"grammar": "start: ("}, ""), ({"grammar": "nothing at all"}, ""),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused_with_a_reason(structure: dict[str, object], message: str) -> None:
    assert message in rejection(StructuredOutput(**structure))


def test_a_model_with_fewer_rows_than_the_tokenizer_has_tokens_still_gets_masks() -> None:
    assert make_tokenizer(VOCABULARY, 100).vocab_size >= 259
    assert make_tokenizer(VOCABULARY, 1000).vocab_size == 1000


# -- special tokens ------------------------------------------------------------------------------------------------


def with_added_tokens() -> GrammarTokenizer:
    """Return a byte tokenizer with a flagged special token, one that only looks like one, and a plain added one."""
    tokenizer = Tokenizer.from_str(ByteTokenizer().serialized())
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("hello", normalized=False)])
    tokenizer.add_special_tokens([AddedToken("[INST]", normalized=False)])
    return GrammarTokenizer(tokenizer.to_str().encode(), (EOS,))


def only_output(structured: StructuredOutput, vocabulary: GrammarTokenizer) -> list[int]:
    """Return the ids of the only output that a structure allows."""
    tokenizer = make_tokenizer(vocabulary, 300)
    matcher = make_matcher(source_of(structured, special_token_ids(vocabulary.tokenizer_json)), tokenizer)
    grammar, ids = GrammarMatcher(matcher, -(-tokenizer.vocab_size // BITS)), list[int]()
    while not grammar.is_terminated:
        ids.append(min(allowed_tokens(grammar) - {EOS}, default=EOS))
        grammar.advance(ids[-1])
    return ids


@for_each("text", ["<tool_call>", "a<tool_call>b", "[INST]", "[INST] x", *ByteTokenizer().special_tokens])
def test_forced_text_with_the_name_of_a_special_token_is_written_with_ordinary_tokens(text: str) -> None:
    vocabulary = with_added_tokens()
    for structured in (StructuredOutput(choice=(text,)), StructuredOutput(regex=re.escape(text)),
                       StructuredOutput(json_schema={"const": text})):  # fmt: skip
        ids = only_output(structured, vocabulary)
        assert bytes(token for token in ids if token < 256).decode().strip('"') == text


def test_a_token_that_says_nothing_about_being_special_is_not() -> None:
    vocabulary = with_added_tokens()
    text = json.loads(vocabulary.tokenizer_json)
    for token in text["added_tokens"]:
        del token["special"]
    assert "hello" not in special_token_ids(json.dumps(text).encode())
    assert "<tool_call>" in json.dumps(text) and "<tool_call>" not in rename_special_tokens(json.dumps(text).encode())


@pytest.mark.parametrize("prefix", ["", "##"])
def test_a_merge_from_or_to_a_renamed_token_is_dropped(prefix: str) -> None:
    merges = [["<a", f"{prefix}>"], "<a> b", ["b", "<a>"], ["<", f"{prefix}a"], f"c {prefix}d"]
    text = {
        "added_tokens": [{"id": 1, "content": "<a>"}],
        "model": {"vocab": {"<a": 0, "<a>": 1}, "merges": merges, "continuing_subword_prefix": prefix or None},
    }
    assert json.loads(rename_special_tokens(json.dumps(text).encode()))["model"]["merges"] == merges[3:]


def test_a_lark_grammar_can_name_special_tokens() -> None:
    vocabulary = with_added_tokens()
    ids = special_token_ids(vocabulary.tokenizer_json)
    grammar = 'start: <tool_call> "<tool_call>" /x<tool_call>y/ [INST] // <tool_call>\nINST: "i"'
    output = only_output(StructuredOutput(grammar=grammar), vocabulary)
    assert output[0] == ids["<tool_call>"]
    assert bytes(output[1:]).decode().startswith("<tool_call>x<tool_call>y")


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
        self.grammar = GrammarMatcher(self.matcher, -(-tokenizer.vocab_size // BITS))

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


@pytest.mark.share(1)
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

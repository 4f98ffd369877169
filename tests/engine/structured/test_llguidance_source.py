"""llguidance source: each kind of structured output is enforced; unsupported keywords are rejected, not ignored."""

import json
import re

import pytest
from tokenizers import AddedToken, Tokenizer

from chairlift.core.structured_output import StructuredOutput
from chairlift.engine.structured.grammar import BITS, Grammar
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer
from chairlift.engine.structured.llguidance_source import (
    make_matcher,
    make_tokenizer,
    rename_special_tokens,
    source_of,
    special_token_ids,
)
from chairlift.text.tokenizer import ByteTokenizer
from support_grammars import EOS, VOCAB_SIZE, VOCABULARY, allowed_tokens, generate_output, grammar_of, random_pick


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


@pytest.mark.parametrize(
    ("structure", "message"),
    [
        ({"json_schema": {"type": "banana"}}, "banana"), ({"json_schema": {"not": {}}}, "not"),
        ({"json_schema": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"json_schema": {"$ref": "http://example.invalid/schema"}}, "example.invalid"),
        ({"json_schema": {"$ref": "#/absent"}}, ""), ({"json_schema": False}, "false"),
        ({"json_schema": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}, ""),
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
    grammar, ids = Grammar(matcher, -(-tokenizer.vocab_size // BITS)), list[int]()
    while not grammar.is_terminated:
        ids.append(min(allowed_tokens(grammar) - {EOS}, default=EOS))
        grammar.advance(ids[-1])
    return ids


@pytest.mark.parametrize(
    "text", ["<tool_call>", "a<tool_call>b", "[INST]", "[INST] x", *ByteTokenizer().special_tokens]
)
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

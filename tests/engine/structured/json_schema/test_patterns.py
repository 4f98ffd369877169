"""Patterns: complements of strings, and classes that llguidance would take for others."""

import random
import re

import pytest

from chairlift.engine.structured.json_schema.budget import LoweringBudget
from chairlift.engine.structured.json_schema.errors import UnsupportedSchemaError
from chairlift.engine.structured.json_schema.patterns import grammar_pattern, none_of, one_of
from support_grammars import grammar_of
from support_json_schema import accepts
from support_shares import for_each


def test_the_complement_of_strings() -> None:
    rng = random.Random(5)
    for _ in range(60):
        texts = ["".join(rng.choices('ab"\\\n-]^', k=rng.randrange(4))) for _ in range(rng.randrange(1, 6))]
        others, same = none_of(texts), one_of(texts)
        assert others is not None
        for _ in range(60):
            text = "".join(rng.choices('ab"\\\n-]^x', k=rng.randrange(5)))
            assert bool(re.search(others[:-1] + r"\Z", text)) == (text not in texts)
            assert bool(re.search(same[:-1] + r"\Z", text)) == (text in texts)


def test_the_grammar_of_a_complement() -> None:
    excluded = ["", "a", 'a"\n', "\\", "ab"]
    grammar = grammar_of(json_schema={"type": "string", "not": {"enum": excluded}})
    assert [text for text in excluded if accepts(grammar, text)] == []
    others = ("b", 'a"', 'a"\nb', "\\\\", "abc", "\u00e4", "\n")
    assert [text for text in others if not accepts(grammar, text)] == []


def test_too_many_strings_have_no_complement() -> None:
    assert none_of(["a" * 201]) is None and none_of([str(number) * 30 for number in range(200)]) is None


@for_each("pattern", ['^[^"]$', r"^[^\\]$", r'^[^"\\a]$', r"^[^\x22]$", r'^(?:[^"\n])$', r"^[^\s\\]$"])
def test_a_class_without_a_quote_or_backslash_stays_without_it(pattern: str) -> None:
    grammar = grammar_of(json_schema={"type": "string", "pattern": pattern})
    for code in (9, 10, 13, *range(32, 127)):
        assert accepts(grammar, chr(code)) == bool(re.search(pattern[:-1] + r"\Z", chr(code)))
    assert grammar_pattern(pattern, "", LoweringBudget()) == grammar_pattern(
        grammar_pattern(pattern, "", LoweringBudget()), "", LoweringBudget()
    )


def test_other_patterns_stay_as_they_are() -> None:
    for pattern in ("^[a-z]+$", r"[^a]", r"\[(?:x)\]", r"^[\s\S]*$", r"\\b", "[(?=]", r'[\p{L}"]', r"\p{L}"):
        assert grammar_pattern(pattern, "", LoweringBudget()) == pattern


@for_each("pattern", ["(?=a)", "(?!a)", "(?<=a)", "(?<!a)", r"\ba", r"(a)\1", r"[\x00-\x1f]"])
def test_what_no_grammar_can_express_is_named(pattern: str) -> None:
    with pytest.raises(UnsupportedSchemaError, match=r"/a/pattern uses "):
        grammar_pattern(pattern, "/a/pattern", LoweringBudget())

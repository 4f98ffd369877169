"""lark_grammar_terms: the parts of a grammar match exactly their texts, as llguidance reads them."""

import re

from chairlift.core.lark_grammar_terms import (
    escape_regex,
    lark_regex,
    lark_sequence,
    lark_string,
    split_special,
    text_up_to,
    text_without,
)
from support_grammars import EOS, allowed_tokens, grammar_of
from support_shares import for_each

TEXTS = [
    "a", r"\.+*?()|[]{}^$#&~-",
    "a/b\n\r\t c", '"<|x|>" \'', "é 🚡 中", "[TOOL_CALLS]", "</a>", "x" * 300, "\x00\x7f", "\\n",
]  # fmt: skip
IDS = {"<a>": 7, "<a><b>": 8, "<b>": 9}


def matches(grammar: str, text: str) -> bool:
    """Whether a text is a whole output."""
    followed = grammar_of(grammar=grammar)
    for byte in text.encode():
        if followed.is_terminated or byte not in allowed_tokens(followed):
            return False
        followed.advance(byte)
    return followed.is_terminated or EOS in allowed_tokens(followed)


@for_each("text", TEXTS)
def test_a_text_matches_itself_alone(text: str) -> None:
    assert re.fullmatch(escape_regex(text), text)
    for grammar in (f"start: T\nT: /{lark_regex(text)}/", f"start: {lark_string(text)}"):
        assert matches(grammar, text)
        assert not matches(grammar, text + "a") and not matches(grammar, text[:-1]) and not matches(grammar, "b")


def test_special_tokens_stand_as_their_ids() -> None:
    assert split_special("x<a><b>y<b>", IDS) == ["x", "<a><b>", "y", "<b>"]
    assert split_special("x", IDS) == ["x"] and split_special("", IDS) == split_special("", {}) == []
    assert lark_sequence("x <a>\n", IDS) == r'"x " <[7]> "\n"' and lark_sequence("<a>", {}) == '"<a>"'


def test_text_has_no_match_of_what_is_excluded() -> None:
    grammar = f"start: T\nT: {text_without('ab|c')}"
    for text, expected in (("", True), ("a\nb", True), ("ab", False), ("xc", False), ("abx", False), ("a", True)):
        assert matches(grammar, text) == expected, text


def test_text_ends_with_the_first_match() -> None:
    end = lark_regex("<e><s>")
    grammar = f"start: T\nT: {text_up_to(end, f'{end}|<s>|x')}"
    for text in ("<e><s>", "a\n<e><s>", "<e>b<e><s>", "<s<e><s>"):
        assert matches(grammar, text), text
    for text in ("", "a", "<e><s>a", "<e><s><e><s>", "a<s>b<e><s>", "x<e><s>"):
        assert not matches(grammar, text), text

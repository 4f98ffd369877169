"""A placeholder keeps a text's length and special characters, and nothing else of it."""

import pytest

from record_clients.text_placeholder import TextPlaceholder
from support_shares import for_each

TEXTS = {
    "words": "One two three four five six seven eight.",
    "XML": "<env>\n  <cwd>/tmp</cwd> is <b>\nthe folder of all\n</b></env>" * 3,
    "code": "Call `read(\"a\")`, then {'b': [1, 2]} | $HOME #1 *all* C:\\x\tend of the example",
    "not ASCII": "Voilà: „schön“ → 日本語 🤖 and twenty more characters",
}


@for_each(("name",), [(name,) for name in TEXTS])
def test_the_text_for_a_placeholder_has_its_numbers(name: str) -> None:
    text = TEXTS[name]
    placeholder = TextPlaceholder.of(text, 17)
    assert TextPlaceholder.parse(placeholder.written()) == placeholder
    expanded = placeholder.expand()
    assert len(expanded) == len(text) and TextPlaceholder.of(expanded, 17) == placeholder
    assert expanded.startswith("begin17text ") and expanded.endswith(" end17text")
    assert set(text.split()).isdisjoint({"begin17text", "end17text"})
    assert expanded == placeholder.expand()


def test_the_file_has_no_word_of_the_text() -> None:
    written = TextPlaceholder.of(TEXTS["XML"], 2).written()
    assert written == '⟦text 2: 177; "<part>" 18, "\\n" 9⟧' and "folder" not in written


def test_a_short_text_is_as_long_as_its_markers() -> None:
    assert TextPlaceholder.of("`a` b", 3).expand() == "begin3text `` end3text"


@pytest.mark.parametrize("text", ["", "text", "⟦text⟧", "⟦text 1⟧", "⟦text 1: 2⟧ and more", 'a ⟦text 1: 2; "x" 1⟧'])
def test_other_strings_are_no_placeholders(text: str) -> None:
    assert TextPlaceholder.parse(text) is None

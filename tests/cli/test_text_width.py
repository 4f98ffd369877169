"""text_width, cut, padded: characters of two columns, of none, and texts that are cut between them."""

from chairlift.cli.text_width import cut, padded, text_width

WIDE = "\u65e5\u672c"  # two characters of two columns each


def test_a_character_takes_one_column_or_two_or_none() -> None:
    assert [text_width(text) for text in ("", "ab", WIDE, "e\u0301", "\u200b", "\uff21")] == [0, 2, 4, 1, 0, 2]


def test_a_text_is_cut_between_characters_and_never_too_wide() -> None:
    assert [cut("abc", width) for width in (3, 2, 1, 0)] == ["abc", "a\u2026", "\u2026", ""]
    assert [cut(WIDE, width) for width in (4, 3, 2, 1)] == [WIDE, "\u65e5\u2026", "\u2026", "\u2026"]
    assert cut("e\u0301e\u0301e", 2) == "e\u0301\u2026"


def test_a_text_is_padded_to_columns() -> None:
    assert (padded(WIDE, 6), padded(WIDE, 6, right=True), padded("abc", 2)) == (WIDE + "  ", "  " + WIDE, "abc")

"""GrammarTokenizer: its representation does not print the vocabulary."""

from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer


def test_megabytes_of_a_tokenizer_are_in_no_message() -> None:
    assert "xxx" not in repr(GrammarTokenizer(b"xxx" * 1000, (1,)))

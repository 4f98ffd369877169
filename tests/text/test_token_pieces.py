"""TokenPieces: the joined bytes of a text's tokens are the text, for all kinds of vocabularies."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from chairlift.text.byte_tokenizer import ByteTokenizer
from chairlift.text.token_pieces import TokenPieces
from chairlift.text.tokenizer import HFTokenizer, Tokenizer
from support_shares import for_each
from support_text import STYLES, build_tokenizer, tokenizer_of

MARK = "▁"  # SentencePiece reads it as a space, so no text of its tokens has it


def long_spaces(style: str) -> HFTokenizer:
    """Return a tokenizer that also has tokens of two and four spaces, as in Llama 2 and Mistral."""
    backend, config = build_tokenizer(style)
    config_json = json.loads(backend.to_str())
    vocab, merges = config_json["model"]["vocab"], config_json["model"]["merges"]
    for size in (1, 2):
        vocab[MARK * 2 * size] = max(vocab.values()) + 1
        merges.insert(size - 1, [MARK * size, MARK * size])
    return HFTokenizer(Backend.from_str(json.dumps(config_json)), config)


TOKENIZERS: dict[str, Tokenizer] = {
    "bytes": ByteTokenizer(),
    **{style: tokenizer_of(style) for style in STYLES},
    **{f"{style} with long spaces": long_spaces(style) for style in ("llama2", "mistral", "gemma")},
}
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=MARK)) | st.text(
    " ab\n<é中\x85\u00ad\ufffd😀"
)


def expected_prefix(name: str, text: str) -> str:
    """Return the prefix that the vocabulary puts before a text."""
    if name.startswith("llama2"):
        return " " if text else ""
    return " " if name.startswith("mistral") and text and not text.startswith(" ") else ""


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.share(2)
@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=150)
@given(text=TEXTS)
@example(text="à la carte, naïve \x80\xa0\xad")
@example(text="a  b   c     d         e")
@example(text="   x")
@example(text="\ufffd 中文 😀😀 \ufffd")
@example(text="<think>\n1 < 2</think>")
def test_the_bytes_of_the_tokens_of_any_text_are_the_text(name: str, text: str) -> None:
    pieces = TokenPieces(TOKENIZERS[name])
    joined = b"".join(pieces.bytes_of(token) for token in ids_of(TOKENIZERS[name], text))
    assert joined == (expected_prefix(name, text) + text).encode()


@for_each("name", TOKENIZERS)
def test_the_long_spaces_of_these_tests_are_single_tokens(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    token_text = [tokenizer.token_text(token) for token in ids_of(tokenizer, "a     b")]
    assert (MARK * 4 in token_text) == name.endswith("long spaces")


@for_each("name", TOKENIZERS)
def test_special_tokens_are_written_as_they_are_spelled(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    pieces = TokenPieces(tokenizer)
    assert tokenizer.special_tokens
    for token_text, token in tokenizer.special_tokens.items():
        assert pieces.bytes_of(token) == token_text.encode() and pieces.text_of(token) == token_text


@for_each("name", TOKENIZERS)
def test_an_id_without_a_token_has_no_bytes(name: str) -> None:
    pieces = TokenPieces(TOKENIZERS[name])
    for token in (TOKENIZERS[name].vocab_size, 2**31 - 1):
        assert (pieces.bytes_of(token), pieces.text_of(token)) == (b"", "")


@pytest.mark.parametrize("name", ["bytes", "qwen", "llama2", "gemma"])
def test_a_part_of_a_character_is_written_in_hexadecimal_and_a_whole_token_is_not(name: str) -> None:
    pieces, ids = TokenPieces(TOKENIZERS[name]), ids_of(TOKENIZERS[name], "a😀")
    assert pieces.text_of(ids[0]).strip() == "a" or name == "llama2"
    parts = [pieces.text_of(token) for token in ids if pieces.text_of(token).startswith("bytes:")]
    assert "".join(parts).replace("bytes:", "") == r"\xf0\x9f\x98\x80"


def test_every_token_of_a_byte_is_that_byte() -> None:
    pieces = TokenPieces(ByteTokenizer())
    assert [pieces.bytes_of(byte) for byte in range(256)] == [bytes([byte]) for byte in range(256)]
    for style in STYLES:
        tokenizer = tokenizer_of(style)
        all_bytes = {TokenPieces(tokenizer).bytes_of(token) for token in range(tokenizer.vocab_size)}
        assert all_bytes >= {bytes([byte]) for byte in range(256)}


def test_a_token_is_asked_for_once() -> None:
    class CountingTokenizer(ByteTokenizer):
        num_calls = 0

        def decode(self, token_ids: object, skip_special_tokens: bool = True) -> str:
            self.num_calls += 1
            return super().decode(token_ids, skip_special_tokens)  # type: ignore[arg-type]

    tokenizer = CountingTokenizer()
    pieces = TokenPieces(tokenizer)
    assert [pieces.bytes_of(token) for token in (65, 66, 65, 66)] == [
        b"A",
        b"B",
        b"A",
        b"B",
    ] and tokenizer.num_calls == 2

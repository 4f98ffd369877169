"""ByteTokenizer: each byte is a token, special tokens have ids of their own, and unknown ids have no text."""

from chairlift.text.byte_tokenizer import ByteTokenizer


def test_bytes_are_tokens() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.encode("é") == [256, 0xC3, 0xA9]
    assert tokenizer.encode("a<|eos|>", add_special_tokens=False) == [97, 257]
    assert tokenizer.decode([256, 97, 0xC3, 0x28, 257, 999, -1]) == "a\ufffd("
    assert tokenizer.decode([97, 258], skip_special_tokens=False) == "a<|pad|>"
    assert [tokenizer.token_text(token_id) for token_id in (97, 257, 259, -1)] == ["a", "<|eos|>", None, None]
    assert tokenizer.fallback_byte(97) is None

"""Pieces: what one token is by itself, as bytes and as text; for scores, which speak of single tokens."""

from functools import cached_property

from chairlift.text.tokenizer import Tokenizer, byte_letters

BROKEN = "\ufffd"
WORD_BEGIN = "▁"  # how SentencePiece writes a space before a word


class TokenPieces:
    """The tokens of one vocabulary. What was asked for is kept; there are no more than the vocabulary has."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, bytes] = {}

    def bytes_of(self, token_id: int) -> bytes:
        """Return the bytes of a token in the middle of a text; none of an id without a token."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._found(token_id)
        return known

    def text_of(self, token_id: int) -> str:
        """Return the token as text; of a part of a character its bytes: `bytes:\\xe2\\x82`, as OpenAI writes them."""
        raw = self.bytes_of(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def _found(self, token_id: int) -> bytes:
        byte = self._tokenizer.fallback_byte(token_id)
        if byte is not None:
            return bytes([byte])
        spelled = self._tokenizer.token_text(token_id)
        if spelled is None:
            return b""
        text = self._tokenizer.decode([token_id], skip_special_tokens=False)
        if BROKEN in text and BROKEN not in spelled and all(letter in self._letters for letter in spelled):
            return bytes(self._letters[letter] for letter in spelled)
        if text.startswith(WORD_BEGIN):
            return text.encode()
        return (" " * (_begins_with(WORD_BEGIN, spelled) - _begins_with(" ", text)) + text).encode()

    @cached_property
    def _letters(self) -> dict[str, int]:
        return {chr(byte): byte for byte in range(256)} | byte_letters()  # ByteTokenizer spells bytes in Latin-1


def _begins_with(letter: str, text: str) -> int:
    return len(text) - len(text.lstrip(letter))

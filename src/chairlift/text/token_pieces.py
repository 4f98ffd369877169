"""TokenPieces: the bytes and the text of single tokens, for logprobs."""

from functools import cached_property

from chairlift.text.byte_tokenizer import byte_characters
from chairlift.text.tokenizer import Tokenizer

BROKEN = "\ufffd"
WORD_BEGIN = "▁"  # how SentencePiece writes a space before a word


class TokenPieces:
    """The bytes of each token of one vocabulary, computed on first use and cached."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._cache: dict[int, bytes] = {}

    def bytes_of(self, token_id: int) -> bytes:
        """Return the bytes of a token in the middle of a text; b"" for an id without a token."""
        piece = self._cache.get(token_id)
        if piece is None:
            piece = self._cache[token_id] = self._compute_bytes(token_id)
        return piece

    def text_of(self, token_id: int) -> str:
        """Return the token as text; a part of a character as `bytes:\\xe2\\x82`, like OpenAI."""
        raw = self.bytes_of(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def _compute_bytes(self, token_id: int) -> bytes:
        byte = self._tokenizer.fallback_byte(token_id)
        if byte is not None:
            return bytes([byte])
        spelled = self._tokenizer.token_text(token_id)
        if spelled is None:
            return b""
        text = self._tokenizer.decode([token_id], skip_special_tokens=False)
        if BROKEN in text and BROKEN not in spelled and all(char in self._byte_values for char in spelled):
            return bytes(self._byte_values[char] for char in spelled)
        if text.startswith(WORD_BEGIN):
            return text.encode()
        return (" " * (_count_leading(WORD_BEGIN, spelled) - _count_leading(" ", text)) + text).encode()

    @cached_property
    def _byte_values(self) -> dict[str, int]:
        return {chr(byte): byte for byte in range(256)} | byte_characters()  # ByteTokenizer spells bytes in Latin-1


def _count_leading(char: str, text: str) -> int:
    return len(text) - len(text.lstrip(char))

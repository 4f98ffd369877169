"""ByteTokenizer: a tokenizer with one token per byte."""

from collections.abc import Mapping, Sequence

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from chairlift.text.tokenizer import ChatPrompt, check_text, special_pattern, split_special


class ByteTokenizer:
    """One token per byte: ids 0..255 are bytes, 256 starts a text, 257 ends it, 258 pads."""

    vocab_size = 259
    eos_token_ids: tuple[int, ...] = (257,)
    special_tokens: Mapping[str, int] = {"<|bos|>": 256, "<|eos|>": 257, "<|pad|>": 258}
    named_tokens: Mapping[str, str] = {"bos_token": "<|bos|>", "eos_token": "<|eos|>", "pad_token": "<|pad|>"}

    def __init__(self) -> None:
        self._pattern = special_pattern(self.special_tokens)
        self._spelled = {token_id: text for text, token_id in self.special_tokens.items()}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return UTF-8 bytes, after 256 when special tokens are added."""
        return ([256] if add_special_tokens else []) + self.encode_chat(ChatPrompt(text))

    def encode_chat(self, prompt: ChatPrompt) -> list[int]:
        """Return UTF-8 bytes; only spellings outside `literal` become special tokens."""
        check_text(prompt.text, "messages")
        ids: list[int] = []
        for piece, special in split_special(prompt.text, self._pattern, prompt.literal):
            ids += [self.special_tokens[piece]] if special else piece.encode()
        return ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Decode the bytes as UTF-8; every maximal invalid part is one U+FFFD."""
        data = bytearray()
        for token_id in token_ids:
            if 0 <= token_id < 256:
                data.append(token_id)
            elif not skip_special_tokens:
                data += self._spelled.get(token_id, "").encode()
        return data.decode(errors="replace")

    def token_text(self, token_id: int) -> str | None:
        """Return one Latin-1 character for a byte, or the special token's spelling."""
        return chr(token_id) if 0 <= token_id < 256 else self._spelled.get(token_id)

    def fallback_byte(self, token_id: int) -> int | None:
        """Return None: bytes are the vocabulary here, not its fallback (see `Detokenizer`)."""
        return None

    def serialized(self) -> str:
        """Return the same vocabulary as a byte-level BPE without merges."""
        backend = Backend(models.BPE(vocab=byte_characters(), merges=[]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens(list(self.special_tokens))
        return backend.to_str()


def byte_characters() -> dict[str, int]:
    """Return character -> byte of byte-level vocabularies (GPT-2's); a printable byte is itself."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    unprintable = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(unprintable)}

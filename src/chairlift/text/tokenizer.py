"""Tokenizer, HFTokenizer: text to token ids and back, by tokenizer.json.

A special token (end of turn, beginning of text) is spelled like ordinary text, so a user can write one. In a chat
prompt only the template may produce special tokens. `ChatPrompt` marks the spellings of the user, and `encode_chat`
encodes those as text:

    <|im_start|>user\\n  say <|im_end|> please  <|im_end|>\\n
    template: special         user: text         template: special
"""

import json
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from chairlift.core.errors import InvalidRequest, ModelError

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered chat.

    Attributes:
        text: the template's output, including the users' text.
        literal: offsets into `text` of special tokens that a user spelled; they are ordinary text.
    """

    text: str
    literal: frozenset[int] = frozenset()


class Tokenizer(Protocol):
    """The tokenizer interface of the text service. Thread-safe."""

    vocab_size: int  # largest id + 1
    eos_token_ids: tuple[int, ...]
    special_tokens: Mapping[str, int]  # spelled -> id
    named_tokens: Mapping[str, str]  # bos_token, eos_token, ... -> spelled, as chat templates know them

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`; special tokens spelled in it count as such.

        Raises InvalidRequest when UTF-8 cannot encode the text.
        """
        ...

    def encode_chat(self, prompt: ChatPrompt) -> list[int]:
        """Return the ids of a rendered chat, without added tokens; like `encode` without literal text.

        Raises InvalidRequest as `encode` does.
        """
        ...

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of the ids; an id without a token has no text; an invalid character is U+FFFD."""
        ...

    def token_text(self, token_id: int) -> str | None:
        """Return the vocabulary's spelling of this id, None for an id without a token."""
        ...

    def fallback_byte(self, token_id: int) -> int | None:
        """Return the byte of a byte-fallback token (`<0xE4>`), None for every other token."""
        ...

    def serialized(self) -> str:
        """Return the tokenizer in tokenizer.json format, for other libraries."""
        ...


def first_difference(tokenizer: Tokenizer, other: Tokenizer) -> int | None:
    """Return the least id of `tokenizer` that is another token of `other`, or none; None for no such id.

    `other` may have more tokens.
    """
    return next(
        (
            token for token in range(tokenizer.vocab_size)
            if tokenizer.token_text(token) != other.token_text(token)
            or tokenizer.fallback_byte(token) != other.fallback_byte(token)
        ), None,
    )  # fmt: skip


def special_pattern(spelled: Iterable[str]) -> re.Pattern[str]:
    """Compile a pattern that matches any of these strings, longest first; no strings match nothing."""
    longest_first = sorted(filter(None, spelled), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def split_special(text: str, pattern: re.Pattern[str], literal: frozenset[int]) -> Iterator[tuple[str, bool]]:
    """Split `text` into (piece, is special token); at a literal offset a special token is text."""
    start = at = 0
    while (match := pattern.search(text, at)) is not None:
        if match.start() in literal:
            at = match.start() + 1
            continue
        if match.start() > start:
            yield text[start : match.start()], False
        yield match.group(), True
        start = at = match.end()
    if start < len(text):
        yield text[start:], False


def plain_text(text: str, tokenizer: Tokenizer) -> ChatPrompt:
    """Return a text in which no special token counts as such, for `encode_chat`."""
    pattern, literal, at = special_pattern(tokenizer.special_tokens), set[int](), 0
    while (match := pattern.search(text, at)) is not None:
        literal.add(match.start())
        at = match.start() + 1
    return ChatPrompt(text, frozenset(literal))


def check_text(text: str, param: str = "prompt") -> None:
    """Reject text that no tokenizer can encode: half a UTF-16 surrogate pair is not a character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"text has half of a surrogate pair (U+{ord(text[error.start]):04X}) at offset {error.start}"
        raise InvalidRequest(message, param=param, offset=error.start) from None


class HFTokenizer:
    """A tokenizer.json, loaded by the tokenizers library, with the settings of tokenizer_config.json.

    Follows transformers 5: tokenizer.json decides which tokens surround a text (`add_bos_token` and `add_eos_token`
    of the configuration have no effect), and named tokens of the vocabulary are special. Truncation and padding are
    off.
    """

    def __init__(self, backend: Backend, config: Mapping[str, Any] | None = None) -> None:
        config = config or {}
        backend.no_truncation()
        backend.no_padding()
        self.named_tokens: Mapping[str, str] = _named_tokens(config)
        special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
        for text in self.named_tokens.values():
            # Only tokens in the vocabulary: a new id would lie beyond the model's embedding.
            if text not in special and backend.token_to_id(text) is not None:
                backend.add_special_tokens([AddedToken(text, special=True, normalized=False)])
        decoder = backend.get_added_tokens_decoder()
        self._backend = backend
        self._special_ids = frozenset(token_id for token_id, token in decoder.items() if token.special)
        self.special_tokens: Mapping[str, int] = {decoder[i].content: i for i in sorted(self._special_ids)}
        eos = self._named_id("eos_token")
        self.eos_token_ids: tuple[int, ...] = () if eos is None else (eos,)
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        self._fallback = _fallback_bytes(backend)

    @classmethod
    def load(cls, folder: Path) -> "HFTokenizer":
        """Read tokenizer.json and, if present, tokenizer_config.json and special_tokens_map.json.

        Raises ModelError naming the file that is missing or cannot be read.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelError(f"{folder} has no tokenizer.json, the only tokenizer format that Chairlift reads")
        config = read_json(folder / "special_tokens_map.json") | read_json(folder / "tokenizer_config.json")
        try:
            backend = Backend.from_str(path.read_text(encoding="utf-8"))
        except Exception as error:  # the library raises bare Exception
            raise ModelError(f"the tokenizers library cannot read {path}: {error}") from error
        return cls(backend, config)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`; `encode_batch_fast` releases the GIL, unlike `encode`."""
        check_text(text)
        return list(self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids)

    def encode_chat(self, prompt: ChatPrompt) -> list[int]:
        """Return the ids of a rendered chat.

        When users spelled special tokens, a second tokenizer that shares the model encodes the prompt. Its special
        tokens have secret spellings, which replace the template's own; the users' spellings are ordinary text to it.
        So the library still handles everything else (prefix spaces, normalisers, tokens that strip their surroundings).

        Raises InvalidRequest also when the vocabulary encodes such a text as the special token itself (Unigram can).
        """
        check_text(prompt.text, "messages")
        if not prompt.literal:
            return self.encode(prompt.text, add_special_tokens=False)
        backend, secret, to_real = self._disguised
        pieces = list(split_special(prompt.text, special_pattern(self.special_tokens), prompt.literal))
        text = "".join(secret[piece] if special else piece for piece, special in pieces)
        ids = list(backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)
        for token_id in ids:
            if token_id in self._special_ids and token_id not in to_real:
                spelled = self.token_text(token_id)
                message = f"the messages contain {spelled!r}, which this tokenizer cannot encode as plain text"
                raise InvalidRequest(message, param="messages")
        return [to_real.get(token_id, token_id) for token_id in ids]

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of the ids from the library's decoder (no clean-up of spaces)."""
        return self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token_text(self, token_id: int) -> str | None:
        """Return the vocabulary's spelling of this id (`Ġhello`, `▁hello`), None for an unused id."""
        return self._backend.id_to_token(token_id)

    def fallback_byte(self, token_id: int) -> int | None:
        """Return the byte of `<0xNN>` when the decoder has byte fallback, else None."""
        return self._fallback.get(token_id)

    def serialized(self) -> str:
        """Return the library's JSON, with the special tokens of the configuration."""
        return self._backend.to_str()

    def _named_id(self, name: str) -> int | None:
        text = self.named_tokens.get(name)
        return None if text is None else self._backend.token_to_id(text)

    @cached_property
    def _disguised(self) -> tuple[Backend, dict[str, str], dict[int, int]]:
        """Build the tokenizer in which special tokens have secret spellings.

        Returns (tokenizer, spelling -> secret spelling, its added token ids -> real ids).
        """
        backend = Backend(self._backend.model)
        if self._backend.normalizer is not None:
            backend.normalizer = self._backend.normalizer
        if self._backend.pre_tokenizer is not None:
            backend.pre_tokenizer = self._backend.pre_tokenizer
        nonce = secrets.token_hex(16)  # users cannot spell a secret
        secret: dict[str, str] = {}
        to_real: dict[int, int] = {}
        for token_id, token in sorted(self._backend.get_added_tokens_decoder().items()):
            spelled = token.content
            if token.special:
                spelled = secret[token.content] = f"\U0010f000{nonce}:{token_id}\U0010f001"
            flags = {
                name: getattr(token, name) for name in ("single_word", "lstrip", "rstrip", "normalized", "special")
            }
            backend.add_tokens([AddedToken(spelled, **flags)])
            added_id = backend.token_to_id(spelled)
            assert added_id is not None, f"{spelled!r} was just added"
            to_real[added_id] = token_id
        return backend, secret, to_real


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; return {} for a missing file. Raises ModelError for an invalid one."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} must contain a JSON object, got {type(value).__name__}")
    return value


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the NAMED_TOKENS of a configuration; each is a string, or an object with `content`."""
    named: dict[str, str] = {}
    for name in NAMED_TOKENS:
        value = config.get(name)
        text = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(text, str) and text:
            named[name] = text
    return named


def _fallback_bytes(backend: Backend) -> dict[int, int]:
    """Return id -> byte of every `<0xNN>` token when the decoder has byte fallback, else {}."""
    if '"ByteFallback"' not in json.dumps(json.loads(backend.to_str()).get("decoder")):
        return {}
    ids = ((backend.token_to_id(f"<0x{byte:02X}>"), byte) for byte in range(256))
    return {token_id: byte for token_id, byte in ids if token_id is not None}

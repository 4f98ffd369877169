"""GGUFVocabulary: the tokens, their types and the special token ids in a GGUF file's metadata, checked.

The readers of single values (`read_text`, `read_list`, `read_flag`, `read_id`) raise ModelError naming the key, since
a file is another program's output: a value may be absent, of another type or out of range.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

from chairlift.core.errors import ModelError

PREFIX = "tokenizer.ggml."

SPECIAL_ID_KEYS: Mapping[str, tuple[str, ...]] = {
    "bos": ("bos_token_id",), "eos": ("eos_token_id",), "eot": ("eot_token_id",), "eom": ("eom_token_id",),
    "unk": ("unknown_token_id",), "pad": ("padding_token_id",), "mask": ("mask_token_id",),
    "sep": ("separator_token_id", "seperator_token_id"),  # the second is the format's own spelling
}  # fmt: skip
"""Role of a special token -> its keys after PREFIX; the first that the file has counts."""


class TokenType(IntEnum):
    """The numbers in tokenizer.ggml.token_type; a file may contain others, which mean nothing special."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class GGUFVocabulary:
    """The vocabulary of a GGUF file.

    Attributes:
        tokens: spelling of each id.
        types: TokenType of each id.
        special_ids: role in SPECIAL_ID_KEYS -> id; only roles that the file has.
        ids: spelling -> id. Without ids that have no token: empty spellings, and the placeholders `[PAD7]` by which
            files fill a vocabulary up to the size of the embedding.
    """

    tokens: list[str]
    types: list[int]
    special_ids: Mapping[str, int]
    ids: Mapping[str, int]

    @cached_property
    def special_tokens(self) -> Mapping[int, bool]:
        """Return id -> whether it is special, of the tokens that are found in a text before it is split."""
        added: dict[int, bool] = {TokenType.CONTROL: True, TokenType.UNKNOWN: True, TokenType.USER_DEFINED: False}
        found = {i: added[kind] for i, kind in enumerate(self.types) if kind in added}
        ends = {role: i for role, i in self.special_ids.items() if role in ("bos", "eos", "eot", "eom")}
        found |= dict.fromkeys(ends.values(), True)
        return {i: special for i, special in sorted(found.items()) if self.tokens[i] in self.ids}

    def special_token(self, role: str) -> str | None:
        """Return the spelling of the special token with this role, None where the file names none."""
        token_id = self.special_ids.get(role)
        return None if token_id is None else self.tokens[token_id]


def read_vocabulary(metadata: Mapping[str, Any]) -> GGUFVocabulary:
    """Read the vocabulary. Raises ModelError naming a key that is absent or invalid, or a token that is there twice."""
    tokens: list[str] = read_list(metadata, "tokens", str, "strings")
    types: list[int] = read_list(metadata, "token_type", int, "integers")
    check_length("token_type", len(types), len(tokens))
    try:
        "".join(tokens).encode()
    except UnicodeEncodeError as error:
        raise ModelError(f"a token in the GGUF file's {PREFIX}tokens is not valid Unicode: {error.reason}") from error
    ids: dict[str, int] = {}
    for token_id, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        if not token or (kind == TokenType.UNUSED and token == f"[PAD{token_id}]"):
            continue
        if ids.setdefault(token, token_id) != token_id:
            both = f"with the ids {ids[token]} and {token_id}"
            raise ModelError(f"the token {token[:100]!r} is twice in the GGUF file's {PREFIX}tokens, {both}")
    return GGUFVocabulary(tokens, types, _special_ids(metadata, tokens, ids), ids)


def _special_ids(metadata: Mapping[str, Any], tokens: list[str], ids: Mapping[str, int]) -> dict[str, int]:
    special: dict[str, int] = {}
    for role, keys in SPECIAL_ID_KEYS.items():
        for key in keys:
            token_id = read_id(metadata, key, len(tokens))
            if token_id is not None and role not in special:
                if tokens[token_id] not in ids:
                    raise ModelError(f"the GGUF file's {PREFIX}{key} is {token_id}, an id without a token")
                special[role] = token_id
    return special


def read_text(metadata: Mapping[str, Any], key: str) -> str | None:
    """Return the string of a whole key, None where the file has none. Raises ModelError for another type."""
    value = metadata.get(key)
    if value is not None and not isinstance(value, str):
        raise ModelError(f"the GGUF file's {key} must be a string, got {type(value).__name__}")
    return value


def read_list(metadata: Mapping[str, Any], key: str, kind: type | tuple[type, ...], name: str) -> list[Any]:
    """Return the list of PREFIX + key, whose elements are of one of these types (a bool is no int).

    Raises ModelError where the key is absent, or its value something else.
    """
    value = metadata.get(PREFIX + key)
    if value is None:
        raise ModelError(f"the GGUF file has no {PREFIX}{key}")
    if not isinstance(value, list | tuple):
        raise ModelError(f"the GGUF file's {PREFIX}{key} must be a list of {name}, got {type(value).__name__}")
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if others := sorted(other.__name__ for other in set(map(type, value)) if other not in kinds):
        raise ModelError(f"the GGUF file's {PREFIX}{key} must be a list of {name}, one element is of type {others[0]}")
    return list(value)


def read_flag(metadata: Mapping[str, Any], key: str) -> bool | None:
    """Return the boolean of PREFIX + key, None where the file has none. Raises ModelError for another type."""
    value = metadata.get(PREFIX + key)
    if value is not None and not isinstance(value, bool):
        raise ModelError(f"the GGUF file's {PREFIX}{key} must be true or false, got {type(value).__name__}")
    return value


def read_id(metadata: Mapping[str, Any], key: str, num_tokens: int) -> int | None:
    """Return the token id of PREFIX + key, None where the file has none.

    Raises ModelError where it is no integer, or is outside a vocabulary of `num_tokens`.
    """
    value = metadata.get(PREFIX + key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise ModelError(f"the GGUF file's {PREFIX}{key} must be a token id, got {type(value).__name__}")
    if not 0 <= value < num_tokens:
        raise ModelError(f"the GGUF file's {PREFIX}{key} is {value}, its vocabulary has {num_tokens} tokens")
    return value


def check_length(key: str, length: int, num_tokens: int) -> None:
    """Raise ModelError unless the list of PREFIX + key has an element for each token."""
    if length != num_tokens:
        raise ModelError(f"the GGUF file's {PREFIX}{key} has {length} elements, its vocabulary has {num_tokens} tokens")

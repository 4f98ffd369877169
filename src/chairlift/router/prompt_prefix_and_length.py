"""prompt_prefix: hashes the beginnings of a request's prompt, so that a replica that computed one is found again.

count_prompt_tokens estimates the length of the prompt alone.

Prompts of token ids are hashed in blocks as the engine hashes them. Text is hashed in chunks of a canonical JSON form:
the messages of a conversation without what models do not read, so that the next turn begins with the same bytes.

root = H(model, adapter, tenant, cache_salt; kind of prompt, tools)     hash[i] = H(hash[i - 1], chunk i)
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice
from typing import Any

import orjson

from chairlift.core.block_hash import extend_block_hashes, root_hash

BLOCK_TOKENS = 128
"""Tokens in a block of a prompt of token ids."""

CHUNKS = ((256, 4096), (1024, 65536), (4096, None))
"""Bytes of a chunk of text, and up to where chunks have this size; long prompts need no fine chunks at their end."""

BYTES_PER_TOKEN = 4
"""Bytes of UTF-8 that a token has in most tokenizers and languages."""

_ROOT_FIELDS = ("tools", "functions", "documents", "chat_template")
_POOLED_FIELDS = ("input", "query", "documents", "text_1", "text_2")
"""Fields with texts of the routes of embeddings and scores."""

_MESSAGE_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id", "function_call")
_CALL_FIELDS = ("id", "type", "function")

_UNREADABLE = (TypeError, struct.error)
"""A value that JSON or a token id cannot have; orjson's own error is a TypeError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPrefix:
    """The hashes of a prompt's beginnings.

    Attributes:
        hashes: one for each beginning, shortest first: `RoutingRequest.prefix`.
        token_counts: estimated tokens of each beginning: `RoutingRequest.prefix_tokens`.
        num_tokens: estimated tokens of the whole prompt: `RoutingRequest.prompt_tokens`.
        root: start of the chain of hashes.
        tail: what is left behind the last hash: bytes of text, or token ids.
        is_chat: whether an answer becomes a message, not a continuation of the prompt.
    """

    hashes: tuple[bytes, ...] = ()
    token_counts: Sequence[int] = ()
    num_tokens: int = 0
    root: bytes = b""
    tail: bytes | tuple[int, ...] = b""
    is_chat: bool = False

    def extended(self, answer: str | Mapping[str, Any] | Sequence[int]) -> tuple[bytes, ...]:
        """Return the hashes of prompt and answer, which the next turn of the conversation begins with.

        answer: the text, the message with tool calls, or for a prompt of token ids the ids. An answer of another kind
        than the prompt leaves the hashes as they are.
        """
        hashes = list(self.hashes)
        try:
            if isinstance(self.tail, tuple):
                if not isinstance(answer, str | Mapping):
                    _extend_ids(hashes, self.root, self.tail + tuple(answer))
            elif self.is_chat and isinstance(answer, str | Mapping):
                message = {"role": "assistant", "content": answer} if isinstance(answer, str) else answer
                _extend_text(hashes, self.root, self.tail + b"," + _dump(_canonical(message)))
            elif isinstance(answer, str):
                _extend_text(hashes, self.root, self.tail + _dump(answer)[1:-1])
        except _UNREADABLE:
            return self.hashes
        return tuple(hashes)


def prompt_prefix(body: Mapping[str, Any], *, model: str, adapter: str = "", tenant: str = "") -> PromptPrefix:
    """Return the prefix hashes of the prompt in the JSON body of a chat or completion request.

    A body that a replica will reject gives no hashes. Of several prompts the first is hashed and all are counted.
    """
    salt = body.get("cache_salt")
    root = root_hash(model, adapter, tenant, salt if isinstance(salt, str) else "")
    try:
        messages = body.get("messages")
        if isinstance(messages, list):
            return _chat_prefix(root, messages, body)
        prefixes = [_completion_prefix(root, prompt) for prompt in _prompts(body)]
        return replace(prefixes[0], num_tokens=sum(prefix.num_tokens for prefix in prefixes))
    except _UNREADABLE:
        return PromptPrefix()


def count_prompt_tokens(body: Mapping[str, Any]) -> int:
    """Return the estimated tokens of the prompt in a body, `PromptPrefix.num_tokens`; 0 for one that cannot be read."""
    try:
        messages = body.get("messages")
        if isinstance(messages, list):
            data, shared = _chat_text(messages, body)
            return _estimate_tokens(len(shared) + len(data))
        return sum(map(_count_completion, _prompts(body)))
    except _UNREADABLE:
        return 0


def pooled_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a body of embeddings or scores that routing reads, with all of its texts as `prompt`."""
    values = [value for name in _POOLED_FIELDS for value in _prompts({"prompt": body.get(name)})]
    texts = [value.get("text") if isinstance(value, Mapping) else value for value in values]
    kept = {name: body[name] for name in ("model", "cache_salt", "user", "timeout") if name in body}
    return kept | {"prompt": [text for text in texts if isinstance(text, str | list)]}


def _prompts(body: Mapping[str, Any]) -> list[Any]:
    """Return the prompts of a completion: texts or lists of token ids, unless a replica will reject them."""
    prompt = body.get("prompt")
    return prompt if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else [prompt]


def _count_completion(prompt: Any) -> int:
    if isinstance(prompt, str):
        return _estimate_tokens(len(_dump(prompt)) - 1)
    return len(prompt) if isinstance(prompt, list) else 0


def _chat_text(messages: list[Any], body: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """Return the canonical form of messages, and that of what a model reads before them."""
    data = _dump([message if _is_canonical(message) else _canonical(message) for message in messages])[:-1]
    definitions = {name: value for name in _ROOT_FIELDS if (value := body.get(name))}
    return data, _dump(definitions) if definitions else b""


def _estimate_tokens(num_bytes: int) -> int:
    return -(-num_bytes // BYTES_PER_TOKEN)


def _chat_prefix(root: bytes, messages: list[Any], body: Mapping[str, Any]) -> PromptPrefix:
    data, shared = _chat_text(messages, body)
    prefix = _text_prefix(sha256(root + b"chat" + shared).digest(), data, len(shared))
    return replace(prefix, is_chat=True)


def _completion_prefix(root: bytes, prompt: Any) -> PromptPrefix:
    if isinstance(prompt, str):
        return _text_prefix(sha256(root + b"text").digest(), _dump(prompt)[:-1], 0)
    if not isinstance(prompt, list) or not prompt:
        return PromptPrefix()
    hashes: list[bytes] = []
    _extend_ids(hashes, root, prompt)
    counts = range(BLOCK_TOKENS, len(prompt) + 1, BLOCK_TOKENS)
    tail = tuple(prompt[len(counts) * BLOCK_TOKENS :])
    return PromptPrefix(hashes=tuple(hashes), token_counts=counts, num_tokens=len(prompt), root=root, tail=tail)


def _text_prefix(root: bytes, data: bytes, shared_bytes: int) -> PromptPrefix:
    hashes: list[bytes] = []
    covered = _extend_text(hashes, root, data)
    counts = [(shared_bytes + end) // BYTES_PER_TOKEN for end in islice(_chunk_ends(), len(hashes))]
    return PromptPrefix(
        hashes=tuple(hashes), token_counts=counts, num_tokens=_estimate_tokens(shared_bytes + len(data)), root=root,
        tail=data[covered:],
    )  # fmt: skip


def _extend_text(hashes: list[bytes], root: bytes, data: bytes) -> int:
    """Append the hashes of the full chunks of data, which begins behind `hashes`. Return the bytes they cover."""
    parent = hashes[-1] if hashes else root
    ends = islice(_chunk_ends(), max(0, len(hashes) - 1), None)
    offset = next(ends) if hashes else 0
    start = 0
    for end in ends:
        if end - offset > len(data):
            return start
        parent = sha256(parent + data[start : end - offset]).digest()
        hashes.append(parent)
        start = end - offset
    raise AssertionError("chunks have no end")


def _extend_ids(hashes: list[bytes], root: bytes, token_ids: Sequence[int]) -> None:
    """Append the hashes of the full blocks of token ids, which begin behind `hashes`."""
    blocks: list[bytes] = []
    extend_block_hashes(blocks, hashes[-1] if hashes else root, token_ids, BLOCK_TOKENS)
    hashes += blocks


def _chunk_ends() -> Iterator[int]:
    end = 0
    for size, limit in CHUNKS:
        while limit is None or end < limit:
            end += size
            yield end


def _is_canonical(message: Any) -> bool:
    """Whether a message is a plain one, of a role and a text."""
    if type(message) is not dict or len(message) != 2 or "role" not in message:
        return False
    return type(content := message.get("content")) is str and content != ""


def _canonical(message: object) -> Mapping[str, Any]:
    """Return what a model reads of a message; its reasoning is left out, as most clients do not send it back."""
    if not isinstance(message, Mapping):
        raise TypeError(f"a message must be an object, got {type(message).__name__}")
    kept = {name: value for name in _MESSAGE_FIELDS if (value := message.get(name))}
    content = kept.get("content")
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        part = content[0]
        if part.get("type") == "text" and isinstance(part.get("text"), str):
            kept["content"] = part["text"]
    if isinstance(calls := kept.get("tool_calls"), list):
        kept["tool_calls"] = [
            {name: value for name in _CALL_FIELDS if (value := call.get(name))} if isinstance(call, dict) else call
            for call in calls
        ]
    return kept


def _dump(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)

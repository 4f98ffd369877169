"""DeliveredTokens, append_members: what the client has received, and the members with which another replica goes on."""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from chairlift.router.attempts.chunks import BadChunk, Chunk, ChunkKind
from chairlift.router.attempts.raw_response_model_and_usage import rename_model


def append_members(body: bytes, members: Mapping[str, Any]) -> bytes:
    """Return a JSON object with further members at its end; the client's bytes before them stay as they are.

    Of duplicate names the last one counts. Some servers of other projects take a duplicate for an error, so `model`,
    the only one that they get, is replaced where it is found. `body` must be a JSON object.
    """
    if "model" in members and body.count(b'"model"') == 1:
        body, unchanged = rename_model(body, members["model"]), body
        if body is not unchanged:
            members = {name: value for name, value in members.items() if name != "model"}
    if not members:
        return body
    # Without its closing brace; parsing and writing it again could change the client's numbers.
    begin = body.rstrip(b" \t\r\n")[:-1]
    separator = b"" if begin.strip(b" \t\r\n") == b"{" else b","
    return begin + separator + orjson.dumps(dict(members))[1:]


class DeliveredTokens:
    """The token ids of each choice that the client has received, or that are final for it where nothing is streamed.

    Attributes:
        num_tokens: tokens of all choices since the start, without those of the client's own `resume`.
        has_usage: whether the token counts were delivered.
    """

    def __init__(self, num_choices: int, resume: Sequence[Sequence[int]] = ()) -> None:
        self._initial = [tuple(tokens) for tokens in resume[:num_choices]]
        self._initial += [()] * (num_choices - len(self._initial))
        self.clear()

    def clear(self) -> None:
        """Forget everything: the request starts again, because the client has received no byte."""
        self._token_ids = [array("q", tokens) for tokens in self._initial]
        self._is_finished = [False] * len(self._initial)
        self._logprobs: list[list[Mapping[str, Any]]] = [[] for _ in self._initial]
        self._num_kept_logprobs = [0] * len(self._initial)
        self.num_tokens = 0
        self.has_usage = False

    @property
    def has_progress(self) -> bool:
        """Whether another replica would have to go on, and not start."""
        return self.num_tokens > 0 or self.has_usage or any(self._is_finished)

    @property
    def are_all_finished(self) -> bool:
        """Whether every choice has its finish reason."""
        return all(self._is_finished)

    def token_ids(self, index: int) -> list[int]:
        """Return the tokens of a choice."""
        return self._token_ids[index].tolist()

    def resume_field(self) -> list[list[int]]:
        """Return the body's field `resume`; the next attempt goes on behind these tokens."""
        # The last response has the logprobs behind these tokens; merge_logprobs() puts those so far before them.
        self._num_kept_logprobs = [len(entries) for entries in self._logprobs]
        return [tokens.tolist() for tokens in self._token_ids]

    def is_new(self, chunk: Chunk) -> bool:
        """Return whether a chunk has something that the client has not received.

        Raises BadChunk for a gap between positions, tokens that differ from those delivered, and an unknown choice.
        """
        if chunk.kind is ChunkKind.USAGE:
            return not self.has_usage
        index, token_ids, position = chunk.choice_index, chunk.token_ids, chunk.position
        if index >= len(self._token_ids):
            raise BadChunk(f"a chunk is of choice {index}, the request has {len(self._token_ids)} choices")
        # What follows a finish reason repeats what an earlier attempt has brought.
        if self._is_finished[index]:
            return False
        num_delivered = len(self._token_ids[index])
        if position is None or position == num_delivered:
            return True
        if position > num_delivered:
            raise BadChunk(f"choice {index} goes on at token {position}, {num_delivered} tokens were delivered")
        if position + len(token_ids) > num_delivered or chunk.is_last:
            raise BadChunk(f"choice {index} repeats tokens from {position} on, {num_delivered} tokens were delivered")
        if tuple(self._token_ids[index][position : position + len(token_ids)]) != token_ids:
            raise BadChunk(f"choice {index} has other tokens from {position} on than those delivered")
        return False

    def add(self, chunk: Chunk) -> None:
        """Add a new chunk as delivered."""
        if chunk.kind is ChunkKind.USAGE:
            self.has_usage = True
            return
        index = chunk.choice_index
        self._token_ids[index].extend(chunk.token_ids)
        self.num_tokens += len(chunk.token_ids)
        self._is_finished[index] = chunk.is_last
        if chunk.logprobs is not None:
            self._logprobs[index].append(chunk.logprobs)

    def merge_logprobs(self, body: bytes) -> bytes:
        """Return a whole response with the logprobs of earlier attempts before those of the last one.

        Raises BadChunk.
        """
        if not any(self._num_kept_logprobs):
            return body
        try:
            response = orjson.loads(body)
            for choice in response["choices"]:
                index = choice["index"]
                if choice.get("logprobs") is not None:
                    earlier = self._logprobs[index][: self._num_kept_logprobs[index]]
                    choice["logprobs"] = _joined([*earlier, choice["logprobs"]])
        except (KeyError, TypeError, IndexError, AttributeError, ValueError):
            raise BadChunk(f"a response has no choices with logprobs: {body[:200]!r}") from None
        return orjson.dumps(response)


def _joined(logprobs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return logprobs whose lists are those of all entries in a row."""
    joined: dict[str, Any] = dict(logprobs[-1])
    for name, value in joined.items():
        if isinstance(value, list):
            joined[name] = [each for entry in logprobs for each in entry.get(name) or ()]
    return joined

"""MessageEvents: the events of a streamed message, in the order of Anthropic's API.

message_start, ping
  content_block_start, content_block_delta .., content_block_stop    of each block
message_delta, message_stop                                          or error

A silent stream has further pings anywhere.
"""

from collections.abc import Callable

import orjson

from chairlift.protocol.anthropic.message_writer import (
    SIGNATURE,
    MessageWriter,
    call_block,
    text_block,
    thinking_block,
    usage_object,
)
from chairlift.protocol.error_formats import anthropic_error
from chairlift.protocol.sse import named_event
from chairlift.protocol.translation.base import Json

TEXT, THINKING = "text", "thinking"


class MessageEvents:
    """Writes the events of one message; see StreamTranslation."""

    def __init__(self, begin: Callable[[Json], MessageWriter]) -> None:
        """Prepare a stream; `begin` makes the writer from the first chunk."""
        self._begin = begin
        self._writer: MessageWriter | None = None
        self._sent: list[bytes] = []
        self._num_blocks = 0
        self._open: str | int | None = None  # TEXT, THINKING or the index of a call
        self._ending: Json = {}
        self._usage: Json = {}

    def chunk(self, chunk: Json) -> bytes:
        """See StreamTranslation."""
        self._start(chunk)
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk["choices"]:
            delta = choice["delta"]
            if text := delta.get("reasoning_content"):
                self._add(THINKING, thinking_block(""), {"type": "thinking_delta", "thinking": text})
            if text := delta.get("content"):
                self._add(TEXT, text_block(""), {"type": "text_delta", "text": text})
            for call in delta.get("tool_calls") or ():
                self._add_call(call)
            if choice.get("finish_reason"):
                self._ending = choice
        return self._take()

    def error(self, error: Json) -> bytes:
        """See StreamTranslation."""
        self._sent.append(named_event(b"error", orjson.dumps(anthropic_error(error, 0))))
        return self._take()

    def keep_alive(self, comment: bytes) -> bytes:
        """See StreamTranslation."""
        self._event("ping")
        return self._take()

    def end(self) -> bytes:
        """See StreamTranslation."""
        assert self._writer is not None, "a stream that went well has chunks"
        self._close()
        self._event("message_delta", delta=self._writer.ending(self._ending), usage=usage_object(self._usage))
        self._event("message_stop")
        return self._take()

    def _start(self, chunk: Json) -> None:
        if self._writer is None:
            self._writer = self._begin(chunk)
            self._event("message_start", message=self._writer.started())
            self._event("ping")

    def _add(self, kind: str | int, block: Json, delta: Json) -> None:
        """Send a delta of a block, which begins with `block` unless it is open."""
        if self._open != kind:
            self._close()
            self._open = kind
            self._event("content_block_start", index=self._num_blocks, content_block=block)
        if delta:
            self._event("content_block_delta", index=self._num_blocks, delta=delta)

    def _add_call(self, call: Json) -> None:
        function, arguments = call["function"], call["function"].get("arguments")
        block = {} if self._open == call["index"] else call_block(call["id"], function["name"], {})
        delta = {"type": "input_json_delta", "partial_json": arguments} if arguments else {}
        self._add(call["index"], block, delta)

    def _close(self) -> None:
        if self._open is None:
            return
        if self._open == THINKING:
            delta = {"type": "signature_delta", "signature": SIGNATURE}
            self._event("content_block_delta", index=self._num_blocks, delta=delta)
        self._event("content_block_stop", index=self._num_blocks)
        self._num_blocks += 1
        self._open = None

    def _event(self, kind: str, **fields: object) -> None:
        self._sent.append(named_event(kind.encode(), orjson.dumps({"type": kind, **fields})))

    def _take(self) -> bytes:
        sent, self._sent = self._sent, []
        return b"".join(sent)

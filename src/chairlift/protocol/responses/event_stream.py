"""ResponseEvents: the events of a streamed response, in the order of OpenAI's Responses API.

response.created, response.in_progress
  response.output_item.added
    response.content_part.added, response.output_text.delta .., response.output_text.done, response.content_part.done
  response.output_item.done
response.completed, response.incomplete or response.failed

A stream that is silent before its output has further response.in_progress events; behind that it has comments, because
clients may take the response of such an event, which has no output, for the newest state.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import orjson

from chairlift.protocol.responses.response_writer import (
    COMPLETED,
    FAILED,
    IN_PROGRESS,
    INCOMPLETE,
    INCOMPLETE_REASONS,
    CalledTool,
    ResponseWriter,
    error_object,
    reasoning_part,
    text_part,
    usage_object,
    whole_logprobs,
)
from chairlift.protocol.sse import named_event
from chairlift.protocol.translation.base import Json

MESSAGE, REASONING, CALL = "message", "reasoning", "function_call"
PROGRESS = "response.in_progress"


@dataclass(slots=True)
class _OpenItem:
    """The output item whose events are being sent; `call` is the index of a call in the choice."""

    kind: str
    index: int
    id: str = ""
    pieces: list[str] = field(default_factory=list)
    logprobs: list[Json] = field(default_factory=list)
    call: int = -1
    called: CalledTool | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class ResponseEvents:
    """Writes the events of one response; see StreamTranslation. `on_end` gets the response at its end."""

    def __init__(
        self, begin: Callable[[Json], ResponseWriter], on_end: Callable[[Json], None], model: str = ""
    ) -> None:  # fmt: skip
        """Prepare a stream; `begin` makes the writer from the first chunk.

        `model` is the request's, with which a silent stream may begin before its first chunk; "" for none.
        """
        self._begin, self._on_end, self._model = begin, on_end, model
        self._writer: ResponseWriter | None = None
        self._sent: list[bytes] = []
        self._number = 0
        self._output: list[Json] = []
        self._open: _OpenItem | None = None
        self._finish_reason = ""
        self._held_logprobs: list[Json] = []  # of tokens without text so far, such as a part of a character
        self._usage: Json | None = None

    def chunk(self, chunk: Json) -> bytes:
        """See StreamTranslation."""
        self._start(chunk)
        if chunk.get("usage"):
            self._usage = chunk["usage"]
        for choice in chunk["choices"]:
            delta = choice["delta"]
            calls = delta.get("tool_calls") or []
            while calls and self._open is not None and self._open.call == calls[0]["index"]:
                self._add_call(calls[0])  # a merged delta may have the end of a call, and text behind it
                calls = calls[1:]
            if text := delta.get("reasoning_content"):
                self._add_text(REASONING, text, [])
            logprobs = self._held_logprobs + whole_logprobs(choice.get("logprobs"))
            self._held_logprobs = []
            if text := delta.get("content"):
                self._add_text(MESSAGE, text, logprobs)
            elif not calls and (self._open is None or self._open.kind == MESSAGE):
                self._held_logprobs = logprobs
            for call in calls:
                self._add_call(call)
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
        return self._take()

    def whole_item(self, item: Json) -> bytes:
        """Return the events of an item that is complete."""
        index = self._next_index()
        self._event("response.output_item.added", output_index=index, item=item)
        self._output.append(item)
        self._event("response.output_item.done", output_index=index, item=item)
        return self._take()

    def error(self, error: Json) -> bytes:
        """See StreamTranslation."""
        self._event("error", code=error.get("code"), message=error["message"], param=error.get("param"))
        if self._writer is not None:
            if self._open is not None:
                self._close(self._open, INCOMPLETE)
            response = self._writer.response(FAILED, self._output, error=error_object(error))
            self._event("response.failed", response=response)
        return self._take()

    def keep_alive(self, comment: bytes) -> bytes:
        """See StreamTranslation."""
        if self._output or self._open is not None or not (self._writer or self._model):
            return comment
        if self._writer is None:
            self._start({"model": self._model})
        else:
            self._event(PROGRESS, response=self._writer.response(IN_PROGRESS, []))
        return self._take()

    def end(self, counted: list[Json] | None = None) -> bytes:
        """See StreamTranslation; `counted` has the output that the model has written, if the response has another."""
        writer = self._started
        reason = INCOMPLETE_REASONS.get(self._finish_reason, "")
        if not self._output and self._open is None:
            self._open_text(MESSAGE)
        if self._open is not None:
            self._close(self._open, INCOMPLETE if reason else COMPLETED)
        usage = None if self._usage is None else usage_object(self._usage, self._output if counted is None else counted)
        response = writer.response(INCOMPLETE if reason else COMPLETED, self._output, usage=usage, reason=reason)
        self._on_end(response)
        self._event("response.incomplete" if reason else "response.completed", response=response)
        return self._take()

    @property
    def _started(self) -> ResponseWriter:
        assert self._writer is not None, "a stream that went well has chunks"
        return self._writer

    def _start(self, chunk: Json) -> None:
        if self._writer is not None:
            return
        self._writer = self._begin(chunk)
        for event in ("response.created", PROGRESS):
            self._event(event, response=self._writer.response(IN_PROGRESS, []))

    def _add_text(self, kind: str, text: str, logprobs: list[Json]) -> None:
        item = self._open if self._open is not None and self._open.kind == kind else self._open_text(kind)
        item.pieces.append(text)
        if kind == REASONING:
            self._part_event("response.reasoning_text.delta", item, delta=text)
            return
        item.logprobs += logprobs
        self._part_event("response.output_text.delta", item, delta=text, logprobs=logprobs)

    def _open_text(self, kind: str) -> _OpenItem:
        item = self._open_item(_OpenItem(kind, self._next_index()))
        part = reasoning_part("") if kind == REASONING else text_part("", [])
        self._part_event("response.content_part.added", item, part=part)
        return item

    def _add_call(self, call: Json) -> None:
        called, item = CalledTool.of(call), self._open
        if item is None or item.call != call["index"]:
            item = self._open_item(_OpenItem(CALL, self._next_index(), call=call["index"], called=called))
        if called.text:
            item.pieces.append(called.text)
            self._item_event(f"response.{_call_text(called)}.delta", item, delta=called.text)

    def _next_index(self) -> int:
        """Close the open item; return the index of the next one."""
        if self._open is not None:
            self._close(self._open, COMPLETED)
        return len(self._output)

    def _open_item(self, item: _OpenItem) -> _OpenItem:
        self._open = item
        added = self._item(item, IN_PROGRESS, has_begun=False)
        item.id = added["id"]
        self._event("response.output_item.added", output_index=item.index, item=added)
        return item

    def _close(self, item: _OpenItem, status: str) -> None:
        text, whole = item.text, self._item(item, status, has_begun=True)
        if item.kind == REASONING:
            self._part_event("response.reasoning_text.done", item, text=text)
            self._part_event("response.content_part.done", item, part=reasoning_part(text))
        elif item.kind == MESSAGE:
            self._part_event("response.output_text.done", item, text=text, logprobs=item.logprobs)
            self._part_event("response.content_part.done", item, part=text_part(text, item.logprobs))
        elif item.called is not None and item.called.is_custom:
            self._item_event("response.custom_tool_call_input.done", item, input=text)
        else:
            self._item_event("response.function_call_arguments.done", item, arguments=text, name=whole["name"])
        self._output.append(whole)
        self._event("response.output_item.done", output_index=item.index, item=whole)
        self._open = None

    def _item(self, item: _OpenItem, status: str, *, has_begun: bool) -> Json:
        text = item.text if has_begun else None
        if item.kind == REASONING:
            return self._started.reasoning(item.index, text, status)
        if item.kind == MESSAGE:
            return self._started.message(item.index, text, item.logprobs, status)
        assert item.called is not None, "an item of a call has one"
        return self._started.call(item.index, item.called._replace(text=text or ""), status)

    def _part_event(self, kind: str, item: _OpenItem, **fields: object) -> None:
        self._item_event(kind, item, content_index=0, **fields)

    def _item_event(self, kind: str, item: _OpenItem, **fields: object) -> None:
        self._event(kind, item_id=item.id, output_index=item.index, **fields)

    def _event(self, kind: str, **fields: object) -> None:
        body = orjson.dumps({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        self._sent.append(named_event(kind.encode(), body))

    def _take(self) -> bytes:
        sent, self._sent = self._sent, []
        return b"".join(sent)


def _call_text(called: CalledTool) -> str:
    """Return what the events call the text of a call."""
    return "custom_tool_call_input" if called.is_custom else "function_call_arguments"

"""CompactionResponse: answers a request of /v1/responses that ends with a trigger by one compaction item."""

from collections.abc import Sequence
from typing import Protocol

from chairlift.core.errors import InvalidRequest
from chairlift.core.validation import invalid_param
from chairlift.protocol.responses.compaction_item import compaction_item
from chairlift.protocol.responses.event_stream import ResponseEvents
from chairlift.protocol.responses.new_response import NewResponse
from chairlift.protocol.responses.request import ResponseRequest
from chairlift.protocol.responses.response_ids import item_id
from chairlift.protocol.responses.response_store import ResponseStore
from chairlift.protocol.responses.response_writer import (
    COMPLETED,
    INCOMPLETE,
    INCOMPLETE_REASONS,
    reasoning_part,
    text_part,
)
from chairlift.protocol.responses.responses_request_fields import MESSAGE
from chairlift.protocol.responses.summary_request import cut_off_error, summary_body, text_of
from chairlift.protocol.translation.base import EVENT_STREAM, Json


class CompactionResponse:
    """One translated request; see Translation.

    The response is stored as others are: a conversation that goes on behind it has the summary in place of what was
    before.
    """

    stream_type = EVENT_STREAM

    def __init__(self, request: ResponseRequest, store: ResponseStore, tenant: str) -> None:
        self._new = NewResponse(request, store, tenant)
        self.body, self.names = summary_body(request), request.names
        self.ignored: Sequence[str] = request.ignored

    def response(self, response: Json) -> Json:
        """See Translation. Raises InvalidRequest for a summary that was cut off or is empty."""
        writer = self._new.writer(response)
        written = writer.whole(response)
        item = self._item(text_of(written["output"]), written["usage"], is_whole=written["status"] != INCOMPLETE)
        translated = writer.response(COMPLETED, [item], usage=written["usage"])
        self._new.save(translated)
        return translated

    def stream(self) -> "CompactionEvents":
        """See Translation."""
        events = ResponseEvents(self._new.writer, self._new.save, self.body.get("model") or "")
        return CompactionEvents(events, self._item)

    def _item(self, summary: str, usage: Json, *, is_whole: bool) -> Json:
        if not is_whole:
            raise cut_off_error(self.body, usage["output_tokens"])
        if not summary:
            raise invalid_param("input", "has no summary: the model has written nothing")
        return compaction_item(item_id("cmp", self._new.id, 0), summary)


class MakeItem(Protocol):
    """Returns the item of a summary, or raises InvalidRequest."""

    def __call__(self, summary: str, usage: Json, *, is_whole: bool) -> Json:
        """See the class."""
        ...


class CompactionEvents:
    """Collects a streamed summary, and sends it as one item at its end; see StreamTranslation."""

    def __init__(self, events: ResponseEvents, make_item: MakeItem) -> None:
        """Prepare a stream; `make_item` returns the item of a summary, or raises InvalidRequest."""
        self._events, self._make_item = events, make_item
        self._pieces: list[str] = []
        self._thoughts: list[str] = []
        self._usage: Json = {"output_tokens": 0}
        self._is_whole = True

    def chunk(self, chunk: Json) -> bytes:
        """See StreamTranslation."""
        for choice in chunk["choices"]:
            self._pieces.append(choice["delta"].get("content") or "")
            self._thoughts.append(choice["delta"].get("reasoning_content") or "")
            self._is_whole = self._is_whole and choice.get("finish_reason") not in INCOMPLETE_REASONS
        if usage := chunk.get("usage"):
            self._usage = {"output_tokens": usage["completion_tokens"]}
        return self._events.chunk({**chunk, "choices": []})

    def error(self, error: Json) -> bytes:
        """See StreamTranslation."""
        return self._events.error(error)

    def keep_alive(self, comment: bytes) -> bytes:
        """See StreamTranslation."""
        return self._events.keep_alive(comment)

    def end(self) -> bytes:
        """See StreamTranslation."""
        written = self._written()
        try:
            item = self._make_item(text_of(written), self._usage, is_whole=self._is_whole)
        except InvalidRequest as error:
            return self._events.error({
                "message": error.message, "type": "invalid_request_error", "code": error.code, **error.details,
            })  # fmt: skip
        return self._events.whole_item(item) + self._events.end(written)

    def _written(self) -> list[Json]:
        """Return the output that the model has written, as far as its text and its tokens need it."""
        reasoning, text = reasoning_part("".join(self._thoughts)), text_part("".join(self._pieces), [])
        return [{"type": "reasoning", "content": [reasoning]}, {"type": MESSAGE, "content": [text]}]

"""CompactionTranslator: serves /v1/responses/compact, a summary in place of a conversation, by /v1/chat/completions.

user A, call, result, user B, answer  ──summary by the model──>  user A, user B, compaction
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from chairlift.protocol.responses.compaction_item import compaction_item, kept_items
from chairlift.protocol.responses.compaction_request_fields import COMPACTIONS
from chairlift.protocol.responses.published_item import published_item
from chairlift.protocol.responses.request import ResponseRequest, read_response_request
from chairlift.protocol.responses.response_ids import item_id, new_response_id
from chairlift.protocol.responses.response_store import ResponseStore
from chairlift.protocol.responses.response_writer import INCOMPLETE, ResponseWriter
from chairlift.protocol.responses.responses_request_fields import ADDITIONAL_TOOLS, MESSAGE, item_type
from chairlift.protocol.responses.summary_request import cut_off_error, summary_body, text_of
from chairlift.protocol.translation.base import EVENT_STREAM, ClientRequest, Json, StreamTranslation

ID_PREFIXES = {MESSAGE: "msg", ADDITIONAL_TOOLS: "at", "function_call": "fc", "custom_tool_call": "ctc",
               "reasoning": "rs"}  # fmt: skip
"""Type of an item -> beginning of the id that it gets if it has none."""


class CompactionTranslator:
    """Translates requests for a compaction; see Translator.

    `store` has the responses that a request may refer to. The model is shown no tools, so that it answers with text.
    """

    inner_path = "/v1/chat/completions"

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    def translate(self, body: Mapping[str, Any], client: ClientRequest) -> "CompactionTranslation":
        """See Translator."""
        return CompactionTranslation(read_response_request(body, self._store, client.tenant, COMPACTIONS))


class CompactionTranslation:
    """One translated request; see Translation."""

    stream_type = EVENT_STREAM

    def __init__(self, request: ResponseRequest) -> None:
        self._request, self._id = request, new_response_id()
        self.ignored: Sequence[str] = request.ignored
        self.names = request.names
        self.body: Json = summary_body(request)

    def response(self, response: Json) -> Json:
        """See Translation. The conversation stays as it is where the model has written nothing.

        Raises InvalidRequest for a summary that was cut off: the conversation without it would be lost.
        """
        created_at = response.get("created") or int(time.time())
        written = ResponseWriter(self._request, self._id, response["model"], created_at).whole(response)
        if written["status"] == INCOMPLETE:
            raise cut_off_error(self.body, written["usage"]["output_tokens"])
        items = [*self._request.earlier_items, *self._request.items]
        if summary := text_of(written["output"]):
            items = kept_items(items)
            items.append(compaction_item(item_id("cmp", self._id, len(items)), summary))
        return {
            "id": self._id, "object": "response.compaction", "created_at": created_at,
            "output": [self._output_item(index, item) for index, item in enumerate(items)], "usage": written["usage"],
        }  # fmt: skip

    def stream(self) -> StreamTranslation:
        """Raise AssertionError: a compaction comes whole."""
        raise AssertionError("a compaction is no stream")

    def _output_item(self, index: int, item: Json) -> Json:
        """Return an item as an output has it."""
        prefix = ID_PREFIXES.get(str(item_type(item)), "item")
        return published_item(item, item_id(prefix, self._id, index))

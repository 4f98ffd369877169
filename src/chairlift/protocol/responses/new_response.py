"""NewResponse: the response that a request of /v1/responses makes, from its id to its place in the store."""

import time

from chairlift.protocol.responses.compaction_item import summary_of, without_compacted
from chairlift.protocol.responses.conversation_reader import PREVIOUS
from chairlift.protocol.responses.request import ResponseRequest
from chairlift.protocol.responses.response_ids import new_response_id
from chairlift.protocol.responses.response_store import ResponseStore
from chairlift.protocol.responses.response_writer import ResponseWriter
from chairlift.protocol.translation.base import Json


class NewResponse:
    """One response.

    Attributes:
        id: its id, which cannot be guessed.
    """

    def __init__(self, request: ResponseRequest, store: ResponseStore, tenant: str) -> None:
        """Prepare the response to a tenant's request; it is kept in `store` if the request wants that."""
        self._request, self._store, self._tenant = request, store, tenant
        self.id = new_response_id()

    def writer(self, chunk: Json) -> ResponseWriter:
        """Return what writes it, from a whole chat completion or from the first chunk of one."""
        return ResponseWriter(self._request, self.id, chunk["model"], chunk.get("created") or int(time.time()))

    def save(self, response: Json) -> None:
        """Store the response object; its `store` says whether there was room."""
        if self._request.is_stored:
            items = self._request.items
            conversation = self._compacted_conversation([*items, *response["output"]])
            response["store"] = self._store.add(self._tenant, response, items, conversation)

    def _compacted_conversation(self, items: list[Json]) -> list[Json] | None:
        """Return what a compaction among the new items leaves of the conversation; None without one."""
        if not any(map(summary_of, items)):
            return None
        left = without_compacted([*self._request.earlier_items, *items])
        # Without a response before it and anything left out, its own items are the conversation.
        return left if self._request.echoed[PREVIOUS] is not None or len(left) < len(items) else None

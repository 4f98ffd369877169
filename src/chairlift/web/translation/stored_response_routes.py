"""StoredResponses: serves the stored responses of /v1/responses by their ids."""

from chairlift.core.errors import InvalidRequest
from chairlift.core.validation import invalid_param
from chairlift.protocol.responses.published_item import published_item
from chairlift.protocol.responses.response_store import ResponseStore
from chairlift.web.body import Receive, Scope, Send
from chairlift.web.lifecycle import Lifecycle
from chairlift.web.query_fields import query_fields, query_limit, query_order
from chairlift.web.request_info import request_info
from chairlift.web.send_response import send_object

MAX_LIMIT = 100
DEFAULT_LIMIT = 20


class StoredResponses:
    """The routes /v1/responses/{id}, /v1/responses/{id}/input_items and /v1/responses/{id}/cancel."""

    def __init__(self, store: ResponseStore, lifecycle: Lifecycle) -> None:
        self._store, self._lifecycle = store, lifecycle

    async def retrieve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a response. Raises NotFound."""
        if query_fields(scope).get("stream", "false") != "false":
            raise invalid_param("stream", "must be false: a stored response is sent as a whole")
        await send_object(send, self._store.response(*self._key(scope)))

    async def delete(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Delete a response. Raises NotFound."""
        tenant, response_id = self._key(scope)
        self._store.delete(tenant, response_id)
        await send_object(send, {"id": response_id, "object": "response", "deleted": True})

    async def input_items(self, scope: Scope, receive: Receive, send: Send) -> None:
        """List the items of a response's own input, the newest first unless `order` is asc. Raises NotFound."""
        tenant, response_id = self._key(scope)
        query = query_fields(scope)
        order = query_order(query)
        limit = query_limit(query, DEFAULT_LIMIT, MAX_LIMIT)
        items = [
            published_item(item, f"item_{response_id.partition('_')[2]}_{index}")
            for index, item in enumerate(self._store.input_items(tenant, response_id))
        ]
        if order == "desc":
            items.reverse()
        if after := query.get("after"):
            place = next((index for index, item in enumerate(items) if item["id"] == after), None)
            if place is None:
                raise invalid_param("after", "names no item of this response")
            items = items[place + 1 :]
        page = items[:limit]
        await send_object(send, {
            "object": "list", "data": page, "has_more": len(items) > len(page),
            "first_id": page[0]["id"] if page else "", "last_id": page[-1]["id"] if page else "",
        })  # fmt: skip

    async def cancel(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raise InvalidRequest: only responses in the background can be cancelled, and there are none."""
        self._store.response(*self._key(scope))
        raise InvalidRequest("the response is complete; close the connection of a response to stop it")

    def _key(self, scope: Scope) -> tuple[str, str]:
        self._lifecycle.check()
        return request_info(scope).authenticated.tenant, scope["path_params"]["id"]

"""ConversationReader: reads the stored items of a conversation for one request, within a bound of bytes."""

from typing import Any

import orjson

from chairlift.core.validation import invalid_param
from chairlift.protocol.field_check import format_short
from chairlift.protocol.responses.response_ids import response_id_of
from chairlift.protocol.responses.response_store import ResponseStore
from chairlift.protocol.responses.responses_request_fields import REFERENCE, item_type
from chairlift.protocol.translation.base import Json

PREVIOUS = "previous_response_id"
_ID = b'"id"'
"""A member of references, whose type may be left out."""


class ConversationReader:
    """Reads the store for one request of a tenant: at most `store.max_read_bytes` of JSON, repetitions included."""

    def __init__(self, store: ResponseStore, tenant: str) -> None:
        self._store, self._tenant = store, tenant
        self._num_bytes = 0
        self._outputs: dict[str, dict[str, tuple[Json, int]]] = {}

    def conversation(self, response_id: str) -> list[Json]:
        """Return the items of a conversation up to a response. Raises NotFound and InvalidRequest."""
        parts = self._store.conversation(self._tenant, response_id)
        self._count(sum(map(len, parts)), PREVIOUS)
        return [item for part in parts for item in orjson.loads(part)]

    def resolve(self, items: list[Any], field: str) -> list[Any]:
        """Return the items of a field with those that references name in their place. Raises InvalidRequest."""
        return [
            self._referenced(item, f"{field}[{index}].id")
            if isinstance(item, dict) and item_type(item) == REFERENCE
            else item
            for index, item in enumerate(items)
        ]

    def _referenced(self, item: Json, at: str) -> Json:
        item_id = item.get("id")
        if not isinstance(item_id, str):
            raise invalid_param(at, f"must be a string, got {format_short(item_id)}")
        response_id = response_id_of(item_id)
        if response_id not in self._outputs:
            output = orjson.loads(self._store.output(self._tenant, response_id) or b"[]")
            self._outputs[response_id] = {each["id"]: (each, len(orjson.dumps(each))) for each in output}
        if (found := self._outputs[response_id].get(item_id)) is None:
            raise invalid_param(at, f"names no stored item: {format_short(item_id)}; send the item itself")
        self._count(found[1], at)
        return found[0]

    def _count(self, num_bytes: int, param: str) -> None:
        self._num_bytes += num_bytes
        if self._num_bytes > self._store.max_read_bytes:
            raise invalid_param(
                param, f"names stored items of {self._num_bytes} bytes together, the limit is "
                f"{self._store.max_read_bytes}; begin a new conversation",
            )  # fmt: skip


def uses_stored_items(body: bytes) -> bool:
    """Return whether a body may read the store, whose items may be much larger than the body."""
    return PREVIOUS.encode() in body or REFERENCE.encode() in body or _ID in body

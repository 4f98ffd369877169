"""ResponseStore: the responses that later requests may refer to, within a bound of bytes.

A response goes on with the conversation of the one before it. An entry keeps its own items only, and names the entry
before. A request that uses a response uses all before it, so an entry is never older than one behind it: what is
dropped first is always the end of a conversation that nothing has used for long.
"""

import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass

import orjson

from chairlift.core.errors import NotFound
from chairlift.protocol.translation.base import Json

ENTRY_OVERHEAD_BYTES = 1024
"""Bytes that an entry takes in addition to its JSON, at most."""

MAX_CHAIN = 8192
"""Responses of one conversation, at most."""

ID_BYTES = 24
PREFIX = "resp_"
SHOWN_ID_CHARS = 80


@dataclass(frozen=True, slots=True)
class _Entry:
    """A stored response: JSON of its input items and of the response, and the id of the one before, "" for none."""

    tenant: str
    items: bytes
    response: bytes
    previous_id: str

    @property
    def num_bytes(self) -> int:
        return len(self.items) + len(self.response) + ENTRY_OVERHEAD_BYTES


class ResponseStore:
    """Keeps responses of one process, for each tenant its own. Any thread may use it.

    Attributes:
        max_bytes: bytes of all entries, at most; 0 stores nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def is_enabled(self) -> bool:
        """Whether anything is stored."""
        return self.max_bytes > 0

    @property
    def num_bytes(self) -> int:
        """Bytes of all entries."""
        return self._num_bytes

    def add(self, tenant: str, response: Json, items: list[Json]) -> None:
        """Store a response with its input items; one that is larger than the whole store is not stored."""
        entry = _Entry(tenant, orjson.dumps(items), orjson.dumps(response), response.get("previous_response_id") or "")
        if entry.num_bytes > self.max_bytes:
            return
        with self._lock:
            self._entries[response["id"]] = entry
            self._num_bytes += entry.num_bytes
            self._touch(response["id"])
            while self._num_bytes > self.max_bytes:
                self._num_bytes -= self._entries.popitem(last=False)[1].num_bytes

    def response(self, tenant: str, response_id: str) -> Json:
        """Return a stored response. Raises NotFound."""
        stored: Json = orjson.loads(self._get(tenant, response_id, "response_id").response)
        return stored

    def input_items(self, tenant: str, response_id: str) -> list[Json]:
        """Return the items of a stored response's own input. Raises NotFound."""
        items: list[Json] = orjson.loads(self._get(tenant, response_id, "response_id").items)
        return items

    def delete(self, tenant: str, response_id: str) -> None:
        """Delete a response; a conversation cannot go on behind it any more. Raises NotFound."""
        self._get(tenant, response_id, "response_id")
        with self._lock:
            if (entry := self._entries.pop(response_id, None)) is not None:
                self._num_bytes -= entry.num_bytes

    def conversation(self, tenant: str, response_id: str) -> list[list[Json]]:
        """Return the items of a conversation up to a response, its own output included. Raises NotFound."""
        with self._lock:
            self._touch(response_id)
        turns: list[_Entry] = []
        next_id = response_id
        while next_id and len(turns) < MAX_CHAIN:
            turns.append(entry := self._get(tenant, next_id, "previous_response_id"))
            next_id = entry.previous_id
        return [items for entry in reversed(turns) for items in (orjson.loads(entry.items), _output(entry))]

    def find_item(self, tenant: str, item_id: str) -> Json | None:
        """Return an output item of a stored response by its id, None where it is not stored."""
        response_id = response_id_of(item_id)
        with self._lock:
            entry = self._entries.get(response_id)
        if entry is None or entry.tenant != tenant:
            return None
        return next((item for item in _output(entry) if item.get("id") == item_id), None)

    def _get(self, tenant: str, response_id: str, param: str) -> _Entry:
        with self._lock:
            entry = self._entries.get(response_id)
        if entry is None or entry.tenant != tenant:
            shown = "".join(char for char in response_id[:SHOWN_ID_CHARS] if " " < char <= "~")
            raise NotFound(
                f"no response {shown} is stored: it was deleted, not stored, stored by another server, or dropped for "
                "newer ones; send the conversation itself as input", param=param,
            )  # fmt: skip
        return entry

    def _touch(self, response_id: str) -> None:
        """Make an entry, and all before it, newer than others; those before it are newer than those behind."""
        for _ in range(MAX_CHAIN):
            if (entry := self._entries.get(response_id)) is None:
                return
            self._entries.move_to_end(response_id)
            response_id = entry.previous_id


def new_response_id() -> str:
    """Return an id that cannot be guessed."""
    return PREFIX + secrets.token_hex(ID_BYTES)


def item_id(kind: str, response_id: str, index: int) -> str:
    """Return the id of an output item: it names its response."""
    return f"{kind}_{response_id.removeprefix(PREFIX)}_{index}"


def response_id_of(item: str) -> str:
    """Return the id of the response that an item's id names."""
    _, _, rest = item.partition("_")
    return PREFIX + rest.rpartition("_")[0]


def _output(entry: _Entry) -> list[Json]:
    output: list[Json] = orjson.loads(entry.response)["output"]
    return output

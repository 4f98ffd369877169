"""ResponseStore: the responses that later requests may refer to, within a bound of bytes.

A response goes on with the conversation of the one before it. An entry keeps its own items only, and names the entry
before. A request that uses a response uses all before it, so an entry is never older than one behind it: what is
dropped first is always the end of a conversation that nothing has used for long. Behind a compaction nothing before it
is used any more: its entry has what stays of the conversation.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass, field

import orjson

from chairlift.core.errors import NotFound
from chairlift.core.validation import invalid_param
from chairlift.protocol.field_check import shown_id
from chairlift.protocol.json_without_spare_memory import compact_json
from chairlift.protocol.translation.base import Json

ENTRY_OVERHEAD_BYTES = 1024
"""Bytes that an entry takes in addition to its JSON, at most."""

MAX_CHAIN = 8192
"""Responses of one conversation, at most."""

DEFAULT_READ_BYTES = 4_000_000
"""Bytes of stored items that one request may use, as many as a body has by default."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A stored response: JSON of its input items, of its output items, and of the response without these.

    Attributes:
        previous_id: id of the response with whose conversation it goes on, "" for none.
        conversation: JSON of the items of the whole conversation up to it, of a compaction; b"" for others.
    """

    items: bytes
    output: bytes
    response: bytes
    previous_id: str
    conversation: bytes

    @property
    def num_bytes(self) -> int:
        parts = (self.items, self.output, self.response, self.conversation)
        return sum(map(len, parts)) + ENTRY_OVERHEAD_BYTES

    @property
    def turn(self) -> tuple[bytes, ...]:
        """What it adds to the conversation of `previous_id`."""
        return (self.conversation,) if self.conversation else (self.items, self.output)


@dataclass(slots=True)
class _TenantEntries:
    """The entries of one tenant, those that are dropped first at the beginning, and their bytes."""

    entries: OrderedDict[str, _Entry] = field(default_factory=OrderedDict)
    num_bytes: int = 0

    def touch(self, response_id: str) -> None:
        """Make an entry, and all before it, newer than others; those before it are newer than those behind."""
        for _ in range(MAX_CHAIN):
            if (entry := self.entries.get(response_id)) is None:
                return
            self.entries.move_to_end(response_id)
            response_id = entry.previous_id


class ResponseStore:
    """Keeps responses of one process, for each tenant its own. Any thread may use it.

    Attributes:
        max_bytes: bytes of all entries, at most; 0 stores nothing. The tenant that has most of them loses some first.
        max_read_bytes: bytes of stored items that one request may use.
    """

    def __init__(self, max_bytes: int, max_read_bytes: int = DEFAULT_READ_BYTES) -> None:
        self.max_bytes, self.max_read_bytes = max_bytes, max_read_bytes
        self._tenants: dict[str, _TenantEntries] = {}
        self._num_bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        with self._lock:
            return sum(len(each.entries) for each in self._tenants.values())

    @property
    def is_enabled(self) -> bool:
        """Whether anything is stored."""
        return self.max_bytes > 0

    @property
    def num_bytes(self) -> int:
        """Bytes of all entries."""
        return self._num_bytes

    def add(
        self, tenant: str, response: Json, items: list[Json], conversation: list[Json] | None = None
    ) -> bool:  # fmt: skip
        """Store a response with its input items; returns whether there is room for it.

        There is none for a response that, with those before it, is larger than the store or the tenant's share.
        `conversation` has the items with which it goes on in place of all before it and of its own.
        """
        entry = _Entry(
            compact_json(items), compact_json(response["output"]), compact_json({**response, "output": []}),
            "" if conversation is not None else response.get("previous_response_id") or "",
            b"" if conversation is None else compact_json(conversation),
        )  # fmt: skip
        if entry.num_bytes > self.max_bytes:
            return False
        with self._lock:
            own = self._tenants.setdefault(tenant, _TenantEntries())
            own.entries[response["id"]] = entry
            own.touch(response["id"])
            self._change_bytes(own, entry.num_bytes)
            while self._num_bytes > self.max_bytes:
                name = max(self._tenants, key=lambda each: self._tenants[each].num_bytes)
                self._remove(name, next(iter(self._tenants[name].entries)))
            return response["id"] in own.entries

    def response(self, tenant: str, response_id: str) -> Json:
        """Return a stored response. Raises NotFound."""
        entry = self._get(tenant, response_id, "response_id")
        return {**orjson.loads(entry.response), "output": orjson.loads(entry.output)}

    def input_items(self, tenant: str, response_id: str) -> list[Json]:
        """Return the items of a stored response's own input. Raises NotFound."""
        items: list[Json] = orjson.loads(self._get(tenant, response_id, "response_id").items)
        return items

    def delete(self, tenant: str, response_id: str) -> None:
        """Delete a response; only behind a later compaction its conversation can still go on. Raises NotFound."""
        self._get(tenant, response_id, "response_id")
        with self._lock:
            if tenant in self._tenants and response_id in self._tenants[tenant].entries:
                self._remove(tenant, response_id)

    def conversation(self, tenant: str, response_id: str) -> list[bytes]:
        """Return the items of a conversation up to a response, its own output included, as lists in JSON.

        They begin with those that the last compaction has left. Raises NotFound, and InvalidRequest if it has
        too many responses since then.
        """
        turns: list[_Entry] = []
        next_id = response_id
        while next_id:
            if len(turns) == MAX_CHAIN:
                raise invalid_param(
                    "previous_response_id", f"goes on with more than {MAX_CHAIN} responses, which is the limit"
                )
            turns.append(entry := self._get(tenant, next_id, "previous_response_id"))
            next_id = entry.previous_id
        with self._lock:
            if (own := self._tenants.get(tenant)) is not None:
                own.touch(response_id)
        return [part for entry in reversed(turns) for part in entry.turn]

    def output(self, tenant: str, response_id: str) -> bytes | None:
        """Return the JSON of a stored response's output items, None where it is not stored."""
        entry = self._find(tenant, response_id)
        return None if entry is None else entry.output

    def _find(self, tenant: str, response_id: str) -> _Entry | None:
        with self._lock:
            own = self._tenants.get(tenant)
            return None if own is None else own.entries.get(response_id)

    def _get(self, tenant: str, response_id: str, param: str) -> _Entry:
        if (entry := self._find(tenant, response_id)) is None:
            raise NotFound(
                f"no response {shown_id(response_id)} is stored: it was deleted, not stored, stored by another server, "
                "or dropped for newer ones; send the conversation itself as input", param=param,
            )  # fmt: skip
        return entry

    def _remove(self, tenant: str, response_id: str) -> None:
        own = self._tenants[tenant]
        self._change_bytes(own, -own.entries.pop(response_id).num_bytes)
        if not own.entries:
            del self._tenants[tenant]

    def _change_bytes(self, own: _TenantEntries, num_bytes: int) -> None:
        own.num_bytes += num_bytes
        self._num_bytes += num_bytes

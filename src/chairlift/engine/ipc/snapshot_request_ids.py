"""Client ids: replaces the engine's request ids in snapshots by those that the clients gave."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from chairlift.engine.batch_snapshot import BatchSnapshot


def display_id(reader: int, owner: int, request_id: str) -> str:
    """Return the id of the reading client's own request as it is, another client's behind that client's number."""
    return request_id if owner == reader else f"client {owner}: {request_id}"


def with_ids(state: dict[str, Any], client_ids: Mapping[str, str]) -> dict[str, Any]:
    """Replace the request ids in a SchedulerState; an id that `client_ids` lacks stays."""
    renamed: dict[str, Any] = {
        key: {client_ids.get(each, each): value for each, value in state[key].items()}
        for key in ("wait_reasons", "states", "choices")
    }
    renamed["waiting_order"] = [client_ids.get(each, each) for each in state["waiting_order"]]
    renamed["sequences"] = [
        each | {"request_id": client_ids.get(each["request_id"], each["request_id"])} for each in state["sequences"]
    ]
    return state | renamed


def with_row_ids(snapshot: BatchSnapshot, client_id: Callable[[str], str | None]) -> BatchSnapshot:
    """Replace the request ids in the rows; without an id the request has ended, and its row is left out."""
    rows = [row._replace(request_id=shown) for row in snapshot.rows if (shown := client_id(row.request_id)) is not None]
    return replace(snapshot, rows=rows)

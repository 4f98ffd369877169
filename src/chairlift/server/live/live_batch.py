"""live_batch: the live data of one replica: its engine's batch, the last minutes, and its last requests."""

from dataclasses import fields
from typing import Any

from chairlift.core.errors import ChairliftError
from chairlift.core.load_report import ReplicaState
from chairlift.engine.batch_snapshot import BatchSnapshot, SequenceRow, StepRecord
from chairlift.server.live.step_history import FIELDS
from chairlift.server.replica import Replica
from chairlift.web.service.live_feed import LiveFeed

INTERVAL_SECONDS = 0.2
"""Time between two snapshots of the engine, all watchers together."""

SCHEMA = 1
"""Version of the events; it changes when a field is renamed or removed."""

SNAPSHOT_FIELDS = tuple(field.name for field in fields(BatchSnapshot))


def live_batch(replica: Replica) -> LiveFeed:
    """Return the feed of a replica: the events `server`, `batch`, `history` and `requests`."""
    batch = _Batch(replica)

    async def server() -> object:
        return _server(replica) | {"batch_stale_reason": batch.stale_reason}

    return LiveFeed(
        lambda: _hello(replica), {"batch": batch.collect, "server": server},
        {"history": replica.history.log, "requests": replica.telemetry.recent_requests},
        interval_seconds=INTERVAL_SECONDS, write_timeout=replica.config.http.write_timeout,
    )  # fmt: skip


class _Batch:
    """The topic of the engine's snapshots.

    Attributes:
        stale_reason: why the engine sends no snapshots now, so that the last one is old; "" while it does.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.stale_reason = ""

    async def collect(self) -> object | None:
        """Return a snapshot; None while the engine starts, is down or hangs."""
        replica = self._replica
        if not replica.has_service or replica.service.client.state is not ReplicaState.READY:
            is_known = replica.lifecycle.state is not ReplicaState.DRAINING
            self.stale_reason = (
                replica.lifecycle.reason if is_known else "the engine is down, and the server is leaving"
            )
            return None
        try:
            snapshot = await replica.engine_reader.ask("batch", replica.service.client.batch_snapshot)
        except ChairliftError as error:
            self.stale_reason = error.message
            return None
        self.stale_reason = ""
        return snapshot_as_json(snapshot)


def snapshot_as_json(snapshot: BatchSnapshot) -> dict[str, Any]:
    """Return a snapshot as JSON has it: rows and steps are lists of the fields that the first event names.

    The number that tells equal request ids of clients apart is taken off.
    """
    body: dict[str, Any] = {name: getattr(snapshot, name) for name in SNAPSHOT_FIELDS}
    body["rows"] = [[row.key, row.request_id.rpartition(".")[0] or row.request_id, *row[2:]] for row in snapshot.rows]
    body["recent_steps"] = [list(step) for step in snapshot.recent_steps]
    return body


def _hello(replica: Replica) -> dict[str, Any]:
    return {
        "schema": SCHEMA, "service": "server", "interval_seconds": INTERVAL_SECONDS,
        "models": list(replica.config.served_names), "row_fields": list(SequenceRow._fields),
        "step_fields": list(StepRecord._fields), "history_fields": list(FIELDS),
    }  # fmt: skip


def _server(replica: Replica) -> dict[str, Any]:
    admission, lifecycle = replica.admission, replica.lifecycle
    return {
        "state": lifecycle.state, "reason": lifecycle.reason, "phase": lifecycle.phase,
        "instance_id": replica.reporter.instance_id, "num_engine_restarts": replica.num_engine_restarts,
        "open_requests": admission.open_requests,
        "admission_waiting_requests": admission.waiting_requests,
        "expected_wait_seconds": round(admission.expected_wait, 2),
    }  # fmt: skip

"""ProcessRecord: what is kept in a file about one replica, before, while and after its process runs.

    ALIVE ── stop ──► STOPPING ── the lock is free ──► STOPPED
      └── the lock is free ──► FAILED

Whether the process runs is not in the record: the lock of the replica says that. The process id and the time of its
start are there for the case that the lock's file was removed by other hands.
"""

import json
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any


class RecordState(StrEnum):
    """What is wanted of a replica, or how it ended."""

    ALIVE = "alive"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """One replica. Times are seconds since 1970, because the next controller reads them, too.

    Attributes:
        replica_id: name of the replica and of its folder.
        host: address that it listens on.
        port: port that it listens on.
        state: see RecordState.
        version: version of its ReplicaSpec.
        replica_type: type of machine that the spec names.
        cpus: CPUs that it is pinned to; empty for all.
        gpus: GPUs that it sees; empty where the spec asks for none.
        pid: process id; 0 until that is known.
        start_ticks: when that process was started, in clock ticks since the start of the system.
        started_at: when its start was asked for.
        stopping_at: when its stop was asked for.
        is_signalled: whether it has been sent SIGTERM.
        is_killed: whether it did not stop in time and has been sent SIGKILL.
        ended_at: when its end was noticed.
        has_served: whether it has ever answered its readiness check.
        num_failures: starts in a row, before this one, that ended without ever serving.
        num_restarts: starts in a row, before this one, that ended soon.
        replaces: id of the failed replica that this one was started for.
        is_replaced: whether another replica was started for this failed one, or none is wanted any more.
        exit_code: exit code, minus the signal's number if a signal ended it; None if it is not known.
        note: what people should know about it.
    """

    replica_id: str
    host: str = ""
    port: int = 0
    state: RecordState = RecordState.ALIVE
    version: str = ""
    replica_type: str = ""
    cpus: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    pid: int = 0
    start_ticks: int = 0
    started_at: float = 0.0
    stopping_at: float = 0.0
    is_signalled: bool = False
    is_killed: bool = False
    ended_at: float = 0.0
    has_served: bool = False
    num_failures: int = 0
    num_restarts: int = 0
    replaces: str = ""
    is_replaced: bool = False
    exit_code: int | None = None
    note: str = ""

    @property
    def may_run(self) -> bool:
        """Whether its end has not been noticed."""
        return self.state in (RecordState.ALIVE, RecordState.STOPPING)

    def to_json(self) -> str:
        """Return the content of the record's file."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "ProcessRecord":
        """Parse the content of a record's file. Raises ValueError for anything else.

        The controller of another release may have written it: unknown fields are ignored, missing ones have defaults.
        """
        body = json.loads(text)
        if not isinstance(body, dict) or not body.keys() >= {"replica_id", "port", "state"}:
            raise ValueError("it is not an object with the fields of a record")
        defaults = cls(replica_id="")
        known = {field.name: getattr(defaults, field.name) for field in fields(cls)}
        return cls(**{name: _value(name, body[name], default) for name, default in known.items() if name in body})


def _value(name: str, value: Any, default: Any) -> Any:
    """Return a field's value with the type of its default. Raises ValueError for another type."""
    if name == "state":
        return RecordState(value)
    if name == "exit_code":
        is_valid = value is None or type(value) is int
    elif isinstance(default, tuple):
        is_valid = isinstance(value, list) and all(type(each) is (int if name == "cpus" else str) for each in value)
        value = tuple(value) if is_valid else value
    elif isinstance(default, float):
        is_valid = type(value) in (int, float)
    else:
        is_valid = type(value) is type(default)
    if not is_valid:
        raise ValueError(f"{name} is {value!r}")
    return value

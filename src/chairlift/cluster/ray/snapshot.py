"""RaySnapshot: nodes, placement groups and actors of Ray at one moment, as the driver process sends them."""

from enum import StrEnum
from typing import Any

import msgspec


class ActorState(StrEnum):
    """What is known about the actor of a placement group."""

    ABSENT = "absent"
    """No actor has its name: it is not yet there, or it has ended."""

    SILENT = "silent"
    """It has not answered in time: its worker starts, or its node is gone and Ray does not know it yet."""

    DEAD = "dead"
    """Ray says that it has died."""

    RUNNING = "running"
    """Its replica runs."""

    STOPPING = "stopping"
    """Its replica was asked to stop."""

    ENDED = "ended"
    """Its replica has ended by itself."""


class RayNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of Ray."""

    node_id: str
    address: str
    is_alive: bool
    resources: dict[str, float]
    """What the node has in all, used or not: {"CPU": 8.0, "GPU": 1.0, ...}."""


class RayGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A placement group of one bundle."""

    name: str
    state: str
    """Ray's word: PENDING, PREPARED, CREATED, RESCHEDULING."""

    node_id: str = ""
    """The node of its bundle; "" until it has one."""

    bundle: dict[str, float] = {}


class ActorReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an actor says about its replica. Fields that an actor of another version does not send have defaults."""

    state: ActorState
    url: str = ""
    exit_code: int | None = None
    last_lines: list[str] = []
    """The last lines of the replica's log."""

    stopping_seconds: float = 0.0
    """Seconds since it was asked to stop."""

    reason: str = ""
    """What Ray says about its death."""


class RaySnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Ray at one moment. `actors` has a report for each placement group that has a place, by the group's name."""

    nodes: list[RayNode] = []
    groups: list[RayGroup] = []
    actors: dict[str, ActorReport] = {}


def to_snapshot(value: Any) -> RaySnapshot:
    """Convert parsed JSON. Raises msgspec.ValidationError."""
    return msgspec.convert(value, RaySnapshot)

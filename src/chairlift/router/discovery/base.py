"""DiscoverySource: the interface of everything that knows replicas; SourceStatus: how one of them does."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from chairlift.router.endpoint import Endpoint

Snapshot = tuple[Endpoint, ...]
"""All replicas of a source at one moment."""


class DiscoverySource(Protocol):
    """One list of replicas that changes."""

    name: str
    """The source as the user wrote it, for messages."""

    def watch(self) -> AsyncGenerator[Snapshot, None]:
        """Yield the whole list at once, and again after each change.

        Raises DiscoveryFailed when the source is down or its answer is not valid; the caller then calls `watch` again
        after a delay, and the list is read anew. The generator may be closed at any await.
        """
        ...


class SourceState(StrEnum):
    """How a source does."""

    STARTING = "starting"
    """It has not answered yet."""

    UP = "up"
    EMPTY = "empty"
    """It answered with an empty list, which is not believed yet: replicas that it has not named again stay."""

    DOWN = "down"
    """It is down or its answer is not valid: its last list stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """How a source does, for operators.

    Attributes:
        name: the source as the user wrote it.
        state: its state.
        since: monotonic seconds at which that state began.
        num_endpoints: replicas of the list that is in use.
        num_updates: lists received.
        num_failures: failures, in all states.
        last_error: reason of the last failure; "" without one.
    """

    name: str
    state: SourceState
    since: float
    num_endpoints: int
    num_updates: int
    num_failures: int
    last_error: str

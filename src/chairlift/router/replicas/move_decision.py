"""choose_moves: which waiting requests move to replicas that have become ready recently.

                       before                         after
    busy replica    RRRRRRRR wwwwwwww          RRRRRRRR w.ww.w.w        the oldest stays: it starts next
    new replica     ........                   RRR.....                 at most half of its free places are taken

A level of open requests by weight is found to which the busy replicas can sink and the new ones rise, as far as their
places allow. What is above it moves, evenly from all ages, so that no request is favoured. No I/O, no clock, no
randomness.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf
from operator import itemgetter
from typing import TypeVar

MIN_WAIT_SECONDS = 1.0
"""Requests move from where they wait this much longer than on the new replica. It is the wait at which the autoscaler
adds replicas by default; a shorter one ends before a connection and another prefill of the prompt would pay."""

SETTLE_SECONDS, ROUND_SECONDS, READY_SECONDS = 0.5, 5.0, 120.0
"""The first requests move to a replica SETTLE_SECONDS after it became ready, because others may become ready at the
same time. More follow every ROUND_SECONDS, with newer load reports, until READY_SECONDS after it became ready."""

MAX_SHARE_OF_PLACES = 0.5
"""Share of a replica's free places that requests take in one round. The rest is for requests that arrive now: behind
those that have missed their SLO already they would miss it, too."""

BISECTION_STEPS = 60

Request = TypeVar("Request")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaQueue:
    """What is open on one replica, of all routers.

    Attributes:
        replica_id: the replica's URL.
        weight: share of the requests, without the slow start; above 0.
        open_requests: requests that are open there.
        waiting_requests: those of them without a first token.
        free_places: further requests that can run there at once; None if unknown.
        expected_wait_seconds: expected wait of a new request there.
    """

    replica_id: str
    weight: float = 1.0
    open_requests: int = 0
    waiting_requests: int = 0
    free_places: int | None = None
    expected_wait_seconds: float = 0.0


def choose_moves(
    queues: Sequence[ReplicaQueue], ready_ids: Collection[str], waiting: Mapping[str, Sequence[Request]]
) -> list[tuple[Request, str]]:
    """Return the requests that move, each with the id of its new replica.

    Args:
        queues: the healthy replicas.
        ready_ids: those that have become ready recently; requests move to them while none waits long there.
        waiting: by replica, the requests without a first token that this router has there, oldest first. Other routers
            move an equal share of theirs.
    """
    ready = [
        each for each in queues if each.replica_id in ready_ids and each.expected_wait_seconds <= MIN_WAIT_SECONDS
    ]  # fmt: skip
    if not ready:
        return []
    least_wait = max(each.expected_wait_seconds for each in ready) + MIN_WAIT_SECONDS
    sources = [
        each for each in queues
        if each.expected_wait_seconds > least_wait and len(waiting.get(each.replica_id, ())) > 1
    ]  # fmt: skip
    num_waiting = [max(each.waiting_requests, len(waiting[each.replica_id])) for each in sources]
    limits = [inf if each.free_places is None else ceil(each.free_places * MAX_SHARE_OF_PLACES) for each in ready]
    movable = [count - 1 for count in num_waiting]
    level = _level(ready, limits, sources, movable)
    surplus = [_surplus(each, count, level) for each, count in zip(sources, movable, strict=True)]
    moved: list[tuple[int, Request]] = []
    wanted = 0.0
    for each, count, amount in zip(sources, num_waiting, surplus, strict=True):
        own = waiting[each.replica_id]
        before, wanted = floor(wanted + 1e-9), wanted + amount * len(own) / count
        moved += spread_evenly(own[1:], floor(wanted + 1e-9) - before)
    moved.sort(key=itemgetter(0))  # the oldest of each replica first
    shares = [_room(each, limit, level) for each, limit in zip(ready, limits, strict=True)]
    return _assign([request for _, request in moved], ready, shares)


def spread_evenly(requests: Sequence[Request], count: int) -> list[tuple[int, Request]]:
    """Return `count` of the requests, every k-th, with their places."""
    count = min(count, len(requests))
    places = [(2 * number + 1) * len(requests) // (2 * count) for number in range(count)]
    return [(place, requests[place]) for place in places]


def _room(ready: ReplicaQueue, limit: float, level: float) -> float:
    """Return how many requests a ready replica takes up to a level."""
    return max(0.0, min(level * ready.weight - ready.open_requests, limit))


def _surplus(source: ReplicaQueue, num_movable: int, level: float) -> float:
    """Return how many requests of a busy replica are above a level."""
    return min(max(0.0, source.open_requests - level * source.weight), num_movable)


def _level(
    ready: Sequence[ReplicaQueue], limits: Sequence[float], sources: Sequence[ReplicaQueue], movable: Sequence[int]
) -> float:
    """Return the level at which the ready replicas take what is above it elsewhere."""
    low, high = 0.0, max([0.0, *(each.open_requests / each.weight for each in sources)])
    for _ in range(BISECTION_STEPS):
        level = (low + high) / 2
        room = sum(_room(each, limit, level) for each, limit in zip(ready, limits, strict=True))
        if room < sum(_surplus(each, count, level) for each, count in zip(sources, movable, strict=True)):
            low = level
        else:
            high = level
    return high


def _assign(
    requests: Sequence[Request], ready: Sequence[ReplicaQueue], shares: Sequence[float]
) -> list[tuple[Request, str]]:
    """Deal the requests out in turn, so that each replica gets its share of every age."""
    total = sum(shares)
    credits = [0.0] * len(ready)
    result: list[tuple[Request, str]] = []
    for request in requests:
        credits = [credit + share for credit, share in zip(credits, shares, strict=True)]
        index = max(range(len(ready)), key=credits.__getitem__)
        credits[index] -= total
        result.append((request, ready[index].replica_id))
    return result

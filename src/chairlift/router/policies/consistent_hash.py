"""ConsistentHashPicker: one key, one replica, as long as that replica is not overloaded.

Multi-probe consistent hashing (Appleton and O'Reilly, 2015) with bounded loads (Mirrokni et al., 2016): a key is hashed
to several places on a ring; the replica whose point follows its place most closely gets it. Points of replicas that
are not candidates are skipped, which gives the choice of a ring without them, so a retry needs no new ring.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from math import ceil, log2

from chairlift.router.policies.candidate import Candidate
from chairlift.router.policies.routing_request import RoutingRequest

LOAD_FACTOR = 1.25
"""A replica gets no key while it has more than this many times its share of the open requests."""

MIN_BOUND = 4
"""Open requests below which a replica of mean weight is never overloaded, so that idle pools keep their keys."""

NUM_PROBES = 21
"""Places of a key on the ring; 21 keep the fullest replica within about 5 % of the mean."""

POINTS_PER_WEIGHT = 8
"""Points of a replica of weight 1; weights are rounded to this part of 1, and count at least as much."""

MAX_RING_WEIGHT = 16.0
"""Largest weight on the ring; where one is larger, all are divided by a power of two."""

RING_SIZE = 1 << 64

KeyFunction = Callable[[RoutingRequest], str]


def client_address_key(request: RoutingRequest) -> str:
    """Return the key of `ip_hash`."""
    return request.client_address or request.request_id


def session_key(request: RoutingRequest) -> str:
    """Return the key of `session`: the session, or the client where the request names none."""
    return request.session_key or client_address_key(request)


class ConsistentHashPicker:
    """Bounded-load consistent hashing of a key of the request; adding one of N replicas moves about 1/N of the keys."""

    def __init__(self, key_of: KeyFunction) -> None:
        self._key_of = key_of
        self._ring = HashRing()

    def choose(
        self, request: RoutingRequest, candidates: Sequence[Candidate], scores: Sequence[float], now: float
    ) -> Candidate:
        """Return the first candidate in the key's order that is not overloaded."""
        self._ring.update(candidates)
        by_id = {candidate.replica_id: candidate for candidate in candidates}
        total_weight = sum(candidate.weight for candidate in candidates)
        total_open = sum(candidate.open_requests for candidate in candidates) + 1
        bound = max(LOAD_FACTOR * total_open, MIN_BOUND * len(candidates)) / total_weight
        for replica_id in self._ring.order(self._key_of(request), by_id):
            candidate = by_id[replica_id]
            if candidate.open_requests < ceil(bound * candidate.weight):
                return candidate
        raise AssertionError("the bounds of all replicas sum to more than the open requests")


class HashRing:
    """Points of replicas on a ring of 64-bit hashes, kept from pick to pick and changed only as replicas change."""

    def __init__(self) -> None:
        self._weights: dict[str, float] = {}
        self._num_points: dict[str, int] = {}
        self._points: list[tuple[int, str]] = []
        self.num_builds = 0

    def update(self, candidates: Sequence[Candidate]) -> None:
        """Adapt the ring to new replicas and weights; replicas that are gone stay until they are half of it."""
        weights = self._weights
        is_current = all(weights.get(candidate.replica_id) == candidate.weight for candidate in candidates)
        if is_current and len(weights) <= 2 * len(candidates) + 16:
            return
        present = {candidate.replica_id: candidate.weight for candidate in candidates}
        self._weights = present if len(weights) > 2 * len(candidates) + 16 else weights | present
        unit = 2.0 ** max(0, ceil(log2(max(self._weights.values()) / MAX_RING_WEIGHT)))
        num_points = {each: max(1, round(POINTS_PER_WEIGHT * w / unit)) for each, w in self._weights.items()}
        if num_points == self._num_points:
            return
        self.num_builds += 1
        changed = {each for each in num_points.keys() | self._num_points.keys()
                   if num_points.get(each) != self._num_points.get(each)}  # fmt: skip
        kept = [point for point in self._points if point[1] not in changed]
        added = [(place, each) for each in changed & num_points.keys()
                 for place in _points(each, num_points[each])]  # fmt: skip
        self._points = sorted(kept + added)
        self._num_points = num_points

    def order(self, key: str, present: dict[str, Candidate]) -> Iterator[str]:
        """Yield the replicas in `present` in the order in which the key prefers them; each at least once."""
        nearest = sorted(self._first_after(place, present) for place in _hash_places(key, NUM_PROBES, b"key"))
        yield from (replica_id for _, replica_id, _ in nearest)
        start = nearest[0][2]
        for index in range(start, start + len(self._points)):
            replica_id = self._points[index % len(self._points)][1]
            if replica_id in present:
                yield replica_id

    def _first_after(self, place: int, present: dict[str, Candidate]) -> tuple[int, str, int]:
        """Return distance, replica and index of the first point at or after a place whose replica is present."""
        index = bisect_left(self._points, (place, ""))
        while True:
            point, replica_id = self._points[index % len(self._points)]
            if replica_id in present:
                return (point - place) % RING_SIZE, replica_id, index % len(self._points)
            index += 1


@lru_cache(maxsize=4096)
def _points(replica_id: str, count: int) -> tuple[int, ...]:
    return _hash_places(replica_id, count, b"replica")


def _hash_places(name: str, count: int, kind: bytes) -> tuple[int, ...]:
    """Return `count` places on the ring; a smaller count gives the first of them."""
    data = name.encode("utf-8", "surrogatepass")
    places: list[int] = []
    for block in range(-(-count // 8)):
        digest = blake2b(data, salt=block.to_bytes(8, "little"), person=kind).digest()
        places += (int.from_bytes(digest[at : at + 8], "little") for at in range(0, 64, 8))
    return tuple(places[:count])

"""FairLine: tenants get equal service, or service by their weights, however many requests each of them sends."""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush

from chairlift.engine.scheduler.waiting_queue.fifo import FifoQueue
from chairlift.engine.sequence import Sequence

QueueKey = tuple[float, int, str]
"""(-virtual service, -arrival of its oldest, tenant): whose turn it is lies at the end"""

NEWCOMER_LAG = 1.0
"""Virtual service by which a newcomer starts behind the one whose turn it is."""

SPARE_TENANTS = 32
"""Tenants that may come after the idle ones were forgotten, before they are looked through again."""


class FairQueue:
    """The next to board is the oldest request of the tenant that was served least, by its weight.

    Service is prompt tokens let in (cached ones are free) and output tokens delivered, divided by the tenant's weight
    (1 where none is given). This is the virtual token counter of Sheng et al., Fairness in Serving Large Language
    Models (OSDI 2024), with both kinds of tokens at cost 1. While two tenants wait, what they were served differs by at
    most what one of them has on board, however long they wait. Equals go by their oldest waiting request.

    Time without requests is not saved up: a tenant that comes (back) starts no lower than the one whose turn it is, or,
    when nobody waits, than the one that left the line last. Here we differ from the paper: where somebody waits, it
    starts BEHIND the one whose turn it is. So only those who wait already are served before the least service in line
    rises by that much, and it rises past everybody in the end: no stream of new tenants starves one that waits.

    A step repositions the tenants that were served since the last one, or whose oldest request left: a search of
    O(log tenants) each, and moved pointers, 8 bytes for each tenant in line with less service. Walking changes nothing
    that shows. About three times the tenants are remembered that wait or were served more than a newcomer starts with;
    to forget the others is O(1) for each newcomer, amortised.
    """

    tracks_service = True
    can_preempt = False

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = dict(weights)
        self._lines: dict[str, FifoQueue] = {}
        self._service: dict[str, float] = {}
        self._order: list[QueueKey] = []
        self._placed: dict[str, QueueKey] = {}
        self._moved: set[str] = set()
        self._floor = 0.0
        self._last_left: str | None = None
        self._charged: set[str] = set()
        self._max_known = SPARE_TENANTS
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def service(self, tenant: str) -> float:
        """Tokens served to a tenant by its weight, its start included."""
        return self._service.get(tenant, self._floor)

    def add(self, sequence: Sequence) -> None:
        """Take a sequence in at its place of arrival among its tenant's."""
        tenant = sequence.request.tenant
        if tenant not in self._lines:
            self._raise_floor()
            start = self._floor + NEWCOMER_LAG if self._order else self._floor
            self._service[tenant] = max(self.service(tenant), start)
            self._lines[tenant] = FifoQueue()
            self._put(tenant, sequence.arrival_index)
            if len(self._service) > self._max_known:
                self._forget_idle()
        elif sequence.arrival_index < -self._placed[tenant][1]:
            self._moved.add(tenant)
        self._lines[tenant].add(sequence)
        self._count += 1

    def remove(self, sequence: Sequence) -> None:
        """Take it out."""
        tenant = sequence.request.tenant
        self._lines[tenant].remove(sequence)
        self._count -= 1
        if self._lines[tenant]:
            self._moved.add(tenant)
            return
        del self._lines[tenant]
        self._take(tenant)
        self._moved.discard(tenant)
        self._last_left = tenant

    def record_service(self, tenant: str, num_tokens: int) -> None:
        """Charge the tenant. The line is repositioned later: somebody may be walking it."""
        self._service[tenant] = self.service(tenant) + num_tokens / self._weights.get(tenant, 1.0)
        self._charged.add(tenant)
        if tenant in self._lines:
            self._moved.add(tenant)

    def __iter__(self) -> Iterator[Sequence]:
        """Walk as if whoever comes out boarded and its prompt were charged at once."""
        self._reposition()
        return self._walk()

    def _walk(self) -> Iterator[Sequence]:
        walks: dict[str, Iterator[Sequence]] = {}
        again: list[tuple[float, int, Sequence]] = []
        untouched = len(self._order) - 1
        while untouched >= 0 or again:
            place = self._order[untouched] if untouched >= 0 else None
            if place is None or (again and again[0][:2] < (-place[0], -place[1])):
                service, _, sequence = heappop(again)
                tenant = sequence.request.tenant
            else:
                service, tenant = -place[0], place[2]
                walks[tenant] = iter(self._lines[tenant])
                sequence = next(walks[tenant])
                untouched -= 1
            yield sequence
            following = next(walks[tenant], None)
            if following is not None:
                service += sequence.num_prompt_tokens / self._weights.get(tenant, 1.0)
                heappush(again, (service, following.arrival_index, following))

    def _reposition(self) -> None:
        """Bring those in line to where their service puts them now."""
        for tenant in self._moved:
            self._take(tenant)
            self._put(tenant, next(iter(self._lines[tenant])).arrival_index)
        self._moved.clear()

    def _raise_floor(self) -> None:
        """Bring the floor, below which nobody starts, to where it is now."""
        self._reposition()
        if self._order:
            self._floor = max(self._floor, -self._order[-1][0])
        elif self._last_left is not None:
            self._floor = max(self._floor, self.service(self._last_left))

    def _put(self, tenant: str, oldest: int) -> None:
        place = self._placed[tenant] = (-self._service[tenant], -oldest, tenant)
        insort(self._order, place)

    def _take(self, tenant: str) -> None:
        del self._order[bisect_left(self._order, self._placed.pop(tenant))]

    def _forget_idle(self) -> None:
        """Drop what a tenant that comes back would be lifted above anyway.

        Who was charged since the last time may be on board still, and is kept: what it is charged next adds to that.
        """
        self._service = {
            tenant: service for tenant, service in self._service.items()
            if service > self._floor or tenant in self._lines or tenant in self._charged
        }  # fmt: skip
        self._charged.clear()
        # Half as many again, not twice: else those kept for being charged would grow from time to time.
        self._max_known = len(self._service) * 3 // 2 + SPARE_TENANTS

    def outranks(self, waiting: Sequence, riding: Sequence) -> bool:
        """Nobody."""
        return False

    def preemption_rank(self, sequence: Sequence) -> int:
        """All alike."""
        return 0

"""FairQueue: gives tenants equal service, or service by weight, however many requests each of them sends."""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush

from chairlift.engine.scheduler.waiting_queue.fifo import FifoQueue
from chairlift.engine.sequence import Sequence

QueueKey = tuple[float, int, str]
"""(-virtual service, -arrival of its oldest request, tenant): the next tenant is the last entry"""

NEWCOMER_LAG = 1.0
"""Virtual service by which a new tenant starts behind the next tenant."""

SPARE_TENANTS = 32
"""New tenants after idle ones were dropped, before idle tenants are looked for again."""


class FairQueue:
    """Schedules the oldest request of the tenant with the least service by weight.

    Service is prompt tokens started (cached ones are free) and output tokens delivered, divided by the tenant's weight
    (default 1). This is the virtual token counter of Sheng et al., Fairness in Serving Large Language Models (OSDI
    2024), with both kinds of tokens at cost 1. While two tenants wait, their service differs by at most the running
    tokens of one of them, however long they wait. Equal tenants go by their oldest waiting request.

    Time without requests earns no service: a tenant that arrives or returns starts no lower than the next tenant, or,
    with an empty queue, than the tenant that left the queue last. Unlike the paper, with a non-empty queue it starts
    BEHIND the next tenant. So only waiting tenants are served before the least waiting service rises by that much, and
    it rises past every tenant in the end: no stream of new tenants starves a waiting one.

    A step repositions the tenants that were served since the last step, or whose oldest request left the queue: a
    search of O(log tenants) each, and moved pointers, 8 bytes for each waiting tenant with less service. An iteration
    changes no visible state. The queue remembers about three times the tenants that wait or have more service than a
    new tenant starts with; dropping the others is O(1) for each new tenant, amortised.
    """

    tracks_service = True
    can_preempt = False

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = dict(weights)
        self._queues: dict[str, FifoQueue] = {}
        self._service: dict[str, float] = {}
        self._order: list[QueueKey] = []
        self._keys: dict[str, QueueKey] = {}
        self._stale: set[str] = set()
        self._floor = 0.0
        self._last_dequeued: str | None = None
        self._charged: set[str] = set()
        self._max_tenants = SPARE_TENANTS
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def service(self, tenant: str) -> float:
        """Return the virtual service of a tenant: tokens by weight, its start included."""
        return self._service.get(tenant, self._floor)

    def add(self, sequence: Sequence) -> None:
        """Add a sequence at its place of arrival among its tenant's."""
        tenant = sequence.request.tenant
        if tenant not in self._queues:
            self._raise_floor()
            start = self._floor + NEWCOMER_LAG if self._order else self._floor
            self._service[tenant] = max(self.service(tenant), start)
            self._queues[tenant] = FifoQueue()
            self._insert(tenant, sequence.arrival_index)
            if len(self._service) > self._max_tenants:
                self._forget_idle()
        # A preempted sequence may be older than all that its tenant has in the queue.
        elif sequence.arrival_index < -self._keys[tenant][1]:
            self._stale.add(tenant)
        self._queues[tenant].add(sequence)
        self._count += 1

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence."""
        tenant = sequence.request.tenant
        self._queues[tenant].remove(sequence)
        self._count -= 1
        if self._queues[tenant]:
            self._stale.add(tenant)
            return
        del self._queues[tenant]
        self._delete(tenant)
        self._stale.discard(tenant)
        self._last_dequeued = tenant

    def record_service(self, tenant: str, num_tokens: int) -> None:
        """Charge the tenant; move it in the order later, because an iteration may be in progress."""
        self._service[tenant] = self.service(tenant) + num_tokens / self._weights.get(tenant, 1.0)
        self._charged.add(tenant)
        if tenant in self._queues:
            self._stale.add(tenant)

    def __iter__(self) -> Iterator[Sequence]:
        """Walk as if each yielded sequence started and its prompt were charged at once."""
        # Not in the generator: that would run only when its first sequence is read.
        self._reposition()
        return self._walk()

    def _walk(self) -> Iterator[Sequence]:
        # The heap has the tenants of which a sequence was yielded, with the service that they would have by then.
        walks: dict[str, Iterator[Sequence]] = {}
        heap: list[tuple[float, int, Sequence]] = []
        next_index = len(self._order) - 1
        while next_index >= 0 or heap:
            key = self._order[next_index] if next_index >= 0 else None
            if key is None or (heap and heap[0][:2] < (-key[0], -key[1])):
                service, _, sequence = heappop(heap)
                tenant = sequence.request.tenant
            else:
                service, tenant = -key[0], key[2]
                walks[tenant] = iter(self._queues[tenant])
                sequence = next(walks[tenant])
                next_index -= 1
            yield sequence
            following = next(walks[tenant], None)
            if following is not None:
                service += sequence.num_prompt_tokens / self._weights.get(tenant, 1.0)
                heappush(heap, (service, following.arrival_index, following))

    def _reposition(self) -> None:
        """Move tenants to the place of their current service."""
        for tenant in self._stale:
            self._delete(tenant)
            self._insert(tenant, next(iter(self._queues[tenant])).arrival_index)
        self._stale.clear()

    def _raise_floor(self) -> None:
        """Raise the floor, the least service that a new tenant starts with."""
        self._reposition()
        if self._order:
            self._floor = max(self._floor, -self._order[-1][0])
        elif self._last_dequeued is not None:
            self._floor = max(self._floor, self.service(self._last_dequeued))

    def _insert(self, tenant: str, oldest: int) -> None:
        key = self._keys[tenant] = (-self._service[tenant], -oldest, tenant)
        insort(self._order, key)

    def _delete(self, tenant: str) -> None:
        del self._order[bisect_left(self._order, self._keys.pop(tenant))]

    def _forget_idle(self) -> None:
        """Drop tenants with no more service than the floor.

        A tenant charged since the last time may still have running sequences, so it is kept: later charges add to it.
        """
        self._service = {
            tenant: service for tenant, service in self._service.items()
            if service > self._floor or tenant in self._queues or tenant in self._charged
        }  # fmt: skip
        self._charged.clear()
        # Factor 1.5, not 2: otherwise the tenants kept for being charged would grow from time to time.
        self._max_tenants = len(self._service) * 3 // 2 + SPARE_TENANTS

    def outranks(self, waiting: Sequence, running: Sequence) -> bool:
        """Return False; no sequence outranks another."""
        return False

    def preemption_rank(self, sequence: Sequence) -> int:
        """Return the same rank for all."""
        return 0

"""FairLine: tenants get equal service, or service by their weights, however many requests each of them sends."""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush

from chairlift.engine.lines.fifo import FifoLine
from chairlift.engine.sequence import Sequence

Place = tuple[float, str]
"""(-virtual service, tenant): whose turn it is lies at the end"""


class FairLine:
    """The next to board is the oldest request of the tenant that was served least, by its weight.

    Service is prompt tokens let in (cached ones are free) and output tokens delivered, divided by the tenant's weight
    (1 where none is given). A tenant that comes back after a pause starts no lower than the one whose turn it is: time
    without requests is not saved up. This is the virtual token counter of Sheng et al., Fairness in Serving Large
    Language Models (OSDI 2024), with both kinds of tokens at cost 1. While two tenants wait, what they were served
    differs by at most what one of them has on board, however long they wait.

    A step repositions the tenants that were served since the last one: O(log tenants) each.
    """

    counts_service = True
    sends_away = False

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = dict(weights)
        self._lines: dict[str, FifoLine] = {}
        self._service: dict[str, float] = {}
        self._turns: list[Place] = []
        self._placed: dict[str, float] = {}
        self._moved: set[str] = set()
        self._floor = 0.0
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
            self._lines[tenant] = FifoLine()
            self._service[tenant] = max(self.service(tenant), self._floor)
            self._put(tenant)
        self._lines[tenant].add(sequence)
        self._count += 1

    def remove(self, sequence: Sequence) -> None:
        """Take it out."""
        tenant = sequence.request.tenant
        self._lines[tenant].remove(sequence)
        self._count -= 1
        if not self._lines[tenant]:
            del self._lines[tenant]
            self._take(tenant)
            self._forget_idle()

    def served(self, tenant: str, num_tokens: int) -> None:
        """Charge the tenant."""
        self._service[tenant] = self.service(tenant) + num_tokens / self._weights.get(tenant, 1.0)
        if tenant in self._placed:
            self._moved.add(tenant)

    def __iter__(self) -> Iterator[Sequence]:
        """Walk as if whoever comes out boarded and its prompt were charged at once."""
        for tenant in self._moved:
            if tenant in self._placed:
                self._take(tenant)
                self._put(tenant)
        self._moved.clear()
        if self._turns:
            self._floor = max(self._floor, -self._turns[-1][0])
        return self._walk()

    def _walk(self) -> Iterator[Sequence]:
        walks: dict[str, Iterator[Sequence]] = {}
        again: list[tuple[float, str]] = []
        untouched = len(self._turns) - 1
        while untouched >= 0 or again:
            if again and (untouched < 0 or again[0] <= (-self._turns[untouched][0], self._turns[untouched][1])):
                service, tenant = heappop(again)
            else:
                service, tenant = -self._turns[untouched][0], self._turns[untouched][1]
                walks[tenant] = iter(self._lines[tenant])
                untouched -= 1
            sequence = next(walks[tenant], None)
            if sequence is not None:
                yield sequence
                heappush(again, (service + sequence.num_prompt / self._weights.get(tenant, 1.0), tenant))

    def _put(self, tenant: str) -> None:
        self._placed[tenant] = self._service[tenant]
        insort(self._turns, (-self._service[tenant], tenant))

    def _take(self, tenant: str) -> None:
        del self._turns[bisect_left(self._turns, (-self._placed.pop(tenant), tenant))]

    def _forget_idle(self) -> None:
        """Drop what a tenant that comes back would be lifted above anyway, when that is most of what is known."""
        if len(self._service) > 2 * len(self._lines) + 64:
            self._service = {
                tenant: service for tenant, service in self._service.items()
                if service > self._floor or tenant in self._lines
            }  # fmt: skip

    def outranks(self, waiting: Sequence, riding: Sequence) -> bool:
        """Nobody."""
        return False

    def expendable(self, sequence: Sequence) -> int:
        """All alike."""
        return 0

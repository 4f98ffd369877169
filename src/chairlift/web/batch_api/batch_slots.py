"""BatchSlots: lets requests of batches begin where they take no place from other requests, each tenant in its turn."""

import asyncio
import contextlib
import logging
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from chairlift.web.auth.principal import Principal
from chairlift.web.batch_api.busy_response import BusyKind, busy_kind
from chairlift.web.batch_api.retry_gate import RetryGate
from chairlift.web.batch_files.batch_run import BatchAttempt, BatchResponse
from chairlift.web.request_info import RequestInfo

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
LONGEST_WAIT_SECONDS = 10.0
"""Seconds after which one request of a batch begins although others wait, so that a busy server ends its batches."""

MAX_LOST_ATTEMPTS = 8
"""Attempts of a request whose replicas were lost, before retries are counted: with their pauses about a minute."""


class Room(Protocol):
    """What a service knows of its load."""

    def is_ready(self) -> bool:
        """Return whether requests are served."""
        ...

    def has_room(self, num_unstarted: int, num_unadmitted: int) -> bool:
        """Return whether a request may begin while `num_unstarted` ones of batches have no output yet.

        Of these, `num_unadmitted` have begun but are not admitted yet, so no count of admitted requests has them.
        """
        ...


class BatchSlots:
    """Bounds the requests of all batches together. Belongs to one event loop.

    The tenant with the fewest open requests is next, and among its batches the one whose turn was longest ago. After a
    busy response the requests of its tenant or batch wait, as RetryGate says.
    """

    def __init__(self, max_requests: int, room: Room, now: Callable[[], float] | None = None) -> None:
        """Allow at most `max_requests` open requests; `now` is the loop's clock by default."""
        self._max_requests, self.room = max_requests, room
        self._now = now or (lambda: asyncio.get_running_loop().time())
        self._infos: dict[int, RequestInfo] = {}
        self._queues: list[SlotQueue] = []  # those with waiting requests, in the order of their turns
        self._num_open: Counter[str] = Counter()
        self._tenant_gates: defaultdict[str, RetryGate] = defaultdict(RetryGate)
        self._changed = asyncio.Event()
        self._dispatching: asyncio.Task[None] | None = None
        self._is_stopped = False

    @property
    def num_unstarted(self) -> int:
        """Open requests of batches that have no output yet."""
        num_waiting = sum(info.permit is not None and info.permit.is_waiting for info in self._infos.values())
        return num_waiting + self.num_unadmitted

    @property
    def num_unadmitted(self) -> int:
        """Open requests of batches that are not admitted yet, those included that are about to be sent."""
        num_without_permit = sum(info.permit is None for info in self._infos.values())
        return num_without_permit + max(0, self._num_open.total() - len(self._infos))

    def stop(self) -> None:
        """Let no further request begin; those that are open go on."""
        self._is_stopped = True

    def queue(self, tenant: str) -> "SlotQueue":
        """Return the queue of one batch's requests."""
        return SlotQueue(self, tenant)

    @contextmanager
    def opened(self, tenant: str) -> Iterator[RequestInfo]:
        """Return the RequestInfo of a request for a tenant, which is counted until the context ends."""
        info = RequestInfo(principal=Principal(tenant))
        self._infos[id(info)] = info
        try:
            yield info
        finally:
            del self._infos[id(info)]

    def gate(self, tenant: str) -> RetryGate:
        """Return the gate of a tenant's requests."""
        return self._tenant_gates[tenant]

    def now(self) -> float:
        """Return the time on the clock of the gates."""
        return self._now()

    def wait(self, queue: "SlotQueue") -> None:
        """Let the first waiting request of a queue begin when it may; for SlotQueue."""
        if queue not in self._queues:
            self._queues.append(queue)
        self._changed.set()
        if self._dispatching is None or self._dispatching.done():
            self._dispatching = asyncio.create_task(self._dispatch(), name="batch slots")

    def release(self, tenant: str) -> None:
        """Give back a place; for SlotQueue."""
        self._num_open[tenant] -= 1
        self._changed.set()

    async def _dispatch(self) -> None:
        begun_at = self._now()
        while any(queue.has_waiting() for queue in self._queues):
            self._changed.clear()
            try:
                while (queue := self._next_queue()) is not None and self._has_room(self._now() - begun_at):
                    begun_at = self._now()
                    self._grant(queue)
                if queue is None:  # so that no time without a request counts as waiting for room
                    begun_at = self._now()
            except Exception:
                log.exception("internal error: requests of batches wait")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._changed.wait()

    def _grant(self, queue: "SlotQueue") -> None:
        self._num_open[queue.tenant] += 1
        self._queues.remove(queue)
        queue.grant()
        self._queues.append(queue)

    def _next_queue(self) -> "SlotQueue | None":
        """Return the queue whose request is next; None where none may begin."""
        self._queues = [queue for queue in self._queues if queue.has_waiting()]
        if self._is_stopped or self._num_open.total() >= self._max_requests or not self.room.is_ready():
            return None
        now = self._now()
        ready = [queue for queue in self._queues if queue.may_begin(now)]
        return min(ready, key=lambda queue: self._num_open[queue.tenant], default=None)

    def _has_room(self, waited_seconds: float) -> bool:
        return self.room.has_room(self.num_unstarted, self.num_unadmitted) or waited_seconds >= LONGEST_WAIT_SECONDS


class SlotQueue:
    """The requests of one batch that wait for a slot.

    Attributes:
        tenant: the batch's tenant.
        num_open: requests that have begun and not ended.
    """

    def __init__(self, slots: BatchSlots, tenant: str) -> None:
        self._slots, self.tenant = slots, tenant
        self.num_open = 0
        self._gate = RetryGate()
        self._waiting: deque[asyncio.Future[_SlotAttempt]] = deque()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[BatchAttempt]:
        """Wait until a request may begin. The request must be sent at once."""
        granted: asyncio.Future[_SlotAttempt] = asyncio.get_running_loop().create_future()
        self._waiting.append(granted)
        self._slots.wait(self)
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():  # cancelled at the moment at which it was granted
                self._end(granted.result())
            raise
        attempt = granted.result()
        try:
            yield attempt
        finally:
            self._end(attempt)

    def has_waiting(self) -> bool:
        """Return whether a request waits."""
        while self._waiting and self._waiting[0].cancelled():
            self._waiting.popleft()
        return bool(self._waiting)

    def may_begin(self, now: float) -> bool:
        """Return whether the gates of the tenant and of the batch let a request begin."""
        return self._gate.may_begin(now) and self._slots.gate(self.tenant).may_begin(now)

    def grant(self) -> None:
        """Let the first waiting request begin, behind has_waiting(); for BatchSlots."""
        tenant_gate = self._slots.gate(self.tenant)
        gates = {
            BusyKind.BATCH: _UsedGate(self._gate, self._gate.begin()),
            BusyKind.TENANT: _UsedGate(tenant_gate, tenant_gate.begin()),
        }
        self.num_open += 1
        self._waiting.popleft().set_result(_SlotAttempt(gates, self._slots.now))

    def _end(self, attempt: "_SlotAttempt") -> None:
        attempt.end()
        self.num_open -= 1
        self._slots.release(self.tenant)


@dataclass(frozen=True, slots=True)
class _UsedGate:
    """A gate that a request has passed, and whether it passed it alone."""

    gate: RetryGate
    is_alone: bool


class _SlotAttempt:
    """See BatchAttempt: tells the gates what a response says."""

    def __init__(self, gates: dict[BusyKind, _UsedGate], now: Callable[[], float]) -> None:
        self._gates, self._now = gates, now

    def is_busy(self, response: BatchResponse, num_attempts: int) -> bool:
        kind = busy_kind(response)
        is_for_ever = kind is not BusyKind.BATCH_FOR_A_WHILE
        if not is_for_ever:
            kind = BusyKind.BATCH
        for name, used in self._gates.items():
            if name is kind:
                used.gate.pause(self._now(), response.retry_after, is_alone=used.is_alone)
            elif used.is_alone and kind is None:
                used.gate.open()
        return kind is not None and (is_for_ever or num_attempts < MAX_LOST_ATTEMPTS)

    def end(self) -> None:
        for used in self._gates.values():
            used.gate.end(is_alone=used.is_alone)

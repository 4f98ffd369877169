"""Riders: those who ask, each a task; what becomes of them is counted as they end."""

import asyncio
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from random import Random

from soak.raw_client import End, Ending, ask
from soak.request_mix import Order, hasty_order, order
from soak.server_fixture import KEYS

MAX_OPEN = 300
REFUSED = 429
KEPT = 4096
"""Endings out of the ordinary that are kept for the verdict."""


@dataclass(slots=True)
class Tally:
    """What became of all requests.

    Attributes:
        kinds: (kind, what became of it) -> how many; all bad input is one kind.
        odd: endings that are not what was asked for.
        dropped: how many of these are not there any more, because others came.
        seconds: of answers of the last requests.
        held_back: requests that came later because too many were open.
    """

    kinds: Counter[tuple[str, str]] = field(default_factory=Counter)
    odd: deque[tuple[Order, Ending]] = field(default_factory=lambda: deque(maxlen=KEPT))
    dropped: int = 0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=10_000))
    held_back: int = 0

    def add(self, asked: Order, ending: Ending) -> None:
        """Count an ending."""
        kind = "bad input" if asked.kind.startswith("bad: ") else asked.kind
        told = f"{ending.status} {ending.code}".strip() if ending.status else str(ending.end)
        if ending.status == 200:
            told = f"{ending.end} {ending.code}".strip()
        self.kinds[kind, told] += 1
        self.seconds.append(ending.ended - ending.began)
        if is_odd(asked, ending):
            self.dropped += len(self.odd) == KEPT
            self.odd.append((asked, ending))

    @property
    def total(self) -> int:
        """Requests that have ended."""
        return sum(self.kinds.values())


def is_odd(asked: Order, ending: Ending) -> bool:
    """Tell whether a verdict has to look at an ending; answers that were expected are many, and only counted."""
    if ending.end not in asked.ends:
        return True
    if ending.end is End.ERROR_EVENT:
        return ending.code != "timeout" or 408 not in asked.statuses
    return ending.status not in (0, REFUSED, *asked.statuses)


class Clients:
    """The traffic. Its requests are numbered, and each is what its number says."""

    def __init__(self, port: int, seed: int) -> None:
        self.tally = Tally()
        self._port = port
        self._seed = seed
        self._dice = Random(seed)
        self._number = 0
        self._open: set[asyncio.Task[None]] = set()

    @property
    def open(self) -> int:
        """How many are under way."""
        return len(self._open)

    async def closed(self, seconds: float, clients: int = 8) -> float:
        """Ask as fast as so many clients can, each one request after the other; returns requests a second."""
        began, count = time.monotonic(), 0

        async def client() -> None:
            nonlocal count
            while time.monotonic() < began + seconds:
                self._number += 1
                asked = hasty_order(self._seed, self._number, self._key())
                self.tally.add(asked, await _asked(self._port, asked))
                count += 1

        await asyncio.gather(*[client() for _ in range(clients)])
        return count / (time.monotonic() - began)

    async def offer(self, rate: float, until: float) -> None:
        """Begin requests at random moments, so many a second on average, until that time."""
        at = time.monotonic()
        while (at := at + self._dice.expovariate(rate)) < until:
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            await self._begin()

    async def burst(self, count: int) -> None:
        """Begin so many requests at once."""
        for _ in range(count):
            await self._begin()

    async def quiet(self) -> None:
        """Wait until all have ended."""
        while self._open:
            await asyncio.wait(set(self._open))

    async def _begin(self) -> None:
        if len(self._open) >= MAX_OPEN:
            self.tally.held_back += 1
            await asyncio.wait(self._open, return_when=asyncio.FIRST_COMPLETED)
        self._number += 1
        task = asyncio.create_task(self._ride(order(self._seed, self._number, self._key())))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _ride(self, asked: Order) -> None:
        self.tally.add(asked, await _asked(self._port, asked))

    def _key(self) -> str:
        return list(KEYS)[self._number % len(KEYS)]


async def _asked(port: int, asked: Order) -> Ending:
    return await ask(port, asked.sent, manner=asked.manner, seconds=asked.seconds, patience=asked.patience)

"""Course: how a soak goes: traffic and faults side by side, times of rest between, and a look at all of it."""

import asyncio
import json
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace

from soak import fault_injection
from soak.bad_requests import CHAT, MODEL
from soak.clients import Clients
from soak.fault_injection import Done
from soak.raw_client import End, ask, request
from soak.sampling import IdleSample, Sample, sample, state
from soak.server_fixture import KEYS, Place

ROUNDS = 10
SAMPLE_SECONDS = 2.0
SHARE = 0.6
"""Of what the server can do that is asked of it, on average and with the bursts."""

BURST_SECONDS = 30.0
BURST = 60
"""Requests at once, of which not all find a place to wait."""

REST_SECONDS = 30.0
"""In which everything has to come back once nobody asks any more; an engine that was killed takes its time."""

FORGETS = 0.3
KEY = next(iter(KEYS))


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakOptions:
    """How long, with which seed, and how many requests a second: 0 for a share of what is measured."""

    seconds: float
    seed: int = 1
    rate: float = 0.0


@dataclass(slots=True)
class Seen:
    """What was seen; times are seconds since the beginning."""

    samples: list[Sample] = field(default_factory=list)
    rests: list[IdleSample] = field(default_factory=list)
    harms: list[Done] = field(default_factory=list)
    capacity: float = 0.0
    rate: float = 0.0


class Soak:
    """One soak of a server that is ready."""

    def __init__(self, place: Place, wishes: SoakOptions) -> None:
        self.seen = Seen()
        self.riders = Clients(place.port, wishes.seed)
        self.began = 0.0
        self._place = place
        self._wishes = wishes
        self._reference = b""
        self._asked = 0

    async def run(self) -> None:
        """Go through all of it. Raises RuntimeError when the server cannot even answer the first request."""
        self._reference = await self._refer()
        if not self._reference:
            raise RuntimeError("the reference request was not answered")
        self.began = time.monotonic()
        watch = asyncio.create_task(self._watch())
        harms = asyncio.create_task(self._harm())
        try:
            await self._measure()
            for number in range(ROUNDS):
                await self._round(self.began + self._wishes.seconds * (number + 1) / ROUNDS)
            await harms
        finally:
            for task in (watch, harms):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        self.seen.samples.append(await self._sample())

    @property
    def age(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began

    async def _measure(self) -> None:
        """Find out how much the server can do, unless that was said."""
        self.seen.capacity = await self.riders.closed(min(15.0, self._wishes.seconds / 20))
        self.seen.rate = self._wishes.rate or max(1.0, SHARE * self.seen.capacity - BURST / BURST_SECONDS)

    async def _round(self, until: float) -> None:
        """Offer requests, with a burst now and then, until it is time to rest; rest."""
        while (left := until - time.monotonic()) > 0:
            end = time.monotonic() + min(left, BURST_SECONDS)
            await self.riders.burst(BURST)
            await self.riders.offer(self.seen.rate, end)
        await self.riders.quiet()
        self.seen.rests.append(await self._rest())

    async def _rest(self) -> IdleSample:
        """Wait until everything is back, and look."""
        end, riders, blocks, faults = time.monotonic() + REST_SECONDS, -1, -1, ["nobody answered"]
        while time.monotonic() < end:
            if found := await state(self._place.port):
                riders = found["scheduler"]["active_requests"] + found["scheduler"]["waiting_requests"]
                blocks, faults = found["cache"]["allocated_blocks"], found["integrity_errors"]
                if riders == blocks == 0:
                    break
            await asyncio.sleep(FORGETS)
        is_same = await self._refer() == self._reference
        await asyncio.sleep(FORGETS)  # so that its connection is closed
        return IdleSample(
            sample=await self._sample(), has_rested=riders == blocks == 0, riders=riders, used_blocks=blocks,
            faults=tuple(faults), is_same=is_same,
        )  # fmt: skip

    async def _refer(self) -> bytes:
        """Return the answer to the reference request without the time in it; never from the cache: the salt is new."""
        self._asked += 1
        body = {
            "model": MODEL, "messages": [{"role": "user", "content": "What is 17 plus 25?"}], "temperature": 0,
            "max_tokens": 32, "logprobs": True, "cache_salt": f"reference-{self._asked}",
        }  # fmt: skip
        sent = request("POST", CHAT, json.dumps(body).encode(), authorization=f"Bearer {KEY}", x_request_id="reference")
        ending = await ask(self._place.port, sent, keep=2**20)
        if ending.end is not End.ANSWERED or ending.status != 200:
            return b""
        answer = json.loads(ending.body)
        del answer["created"]
        return json.dumps(answer).encode()

    async def _sample(self) -> Sample:
        return await sample(self._place, self.age, KEY)

    async def _watch(self) -> None:
        while True:
            self.seen.samples.append(await self._sample())
            await asyncio.sleep(SAMPLE_SECONDS)

    async def _harm(self) -> None:
        for share, what in fault_injection.PLAN:
            await asyncio.sleep(max(0.0, share * self._wishes.seconds - self.age))
            self.seen.harms.append(await fault_injection.do(what, self._place, KEY))

    def since(self, done: Done) -> Done:
        """Return a fault with its times since the beginning."""
        return replace(
            done, began=done.began - self.began, until=None if done.until is None else done.until - self.began
        )

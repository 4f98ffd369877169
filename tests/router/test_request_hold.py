"""RequestHold: requests wait for the first replica, and learn when to come back."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from chairlift.core.clock import FakeClock
from chairlift.core.errors import RequestTimeout, Unavailable
from chairlift.router.request_hold import MAX_RETRY_SECONDS, MAX_START_SECONDS, RequestHold
from support_server import run


class Holding:
    """A hold whose replica becomes ready when the test says so."""

    def __init__(self, hold_seconds: float = 5.0) -> None:
        self.is_ready = False
        self.clock = FakeClock()
        self.num_calls = 0
        self.hold = RequestHold(hold_seconds, lambda: self.is_ready, self.clock)
        self.hold.on_hold = self._count

    def _count(self) -> None:
        self.num_calls += 1

    async def start_replica(self, seconds: float) -> None:
        """Let a replica need `seconds` to be ready, with one request that waits for it."""
        self.is_ready = False
        waiting = asyncio.create_task(self.hold.wait(1))
        await asyncio.sleep(0)
        self.clock.advance(seconds)
        self.is_ready = True
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.sleep(0.03)


def scenario(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def wrapped() -> None:
        run(test())

    wrapped.__name__ = test.__name__
    return wrapped


@scenario
async def test_requests_wait_until_a_replica_is_ready_and_each_of_them_asks_for_one() -> None:
    holding = Holding()
    waiting = [asyncio.create_task(holding.hold.wait(tokens)) for tokens in (5, 7)]
    await asyncio.sleep(0)
    assert (holding.hold.num_requests, holding.hold.num_tokens, holding.num_calls) == (2, 12, 2)
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in waiting)
    holding.is_ready = True
    await asyncio.gather(*waiting)
    assert (holding.hold.num_requests, holding.hold.num_tokens) == (0, 0)


@scenario
async def test_a_request_does_not_wait_while_a_replica_is_ready() -> None:
    holding = Holding()
    holding.is_ready = True
    await holding.hold.wait(5)
    assert holding.num_calls == 0


@scenario
async def test_a_request_that_waits_too_long_is_rejected_and_the_next_start_is_still_learnt() -> None:
    holding = Holding(hold_seconds=0.03)
    with pytest.raises(Unavailable) as raised:
        await holding.hold.wait(5)
    assert raised.value.details["retry_after"] == 1.0  # nothing was learnt yet: the hold time, at least a second
    assert holding.hold.num_requests == 0
    holding.clock.advance(20)
    holding.is_ready = True
    await asyncio.sleep(0.2)
    assert holding.hold.start_seconds == pytest.approx(20)


@scenario
async def test_the_time_to_come_back_is_what_starts_took_less_what_has_passed() -> None:
    holding = Holding(hold_seconds=10)
    for seconds in (30, 20, 40):
        await holding.start_replica(seconds)
    assert holding.hold.start_seconds == pytest.approx(30)
    holding.is_ready = False
    with pytest.raises(Unavailable) as raised:  # at once: it would wait longer than it may
        await holding.hold.wait(1)
    assert raised.value.details["retry_after"] == pytest.approx(30)
    holding.clock.advance(12)
    with pytest.raises(Unavailable) as raised:
        await holding.hold.wait(1)
    assert raised.value.details["retry_after"] == pytest.approx(18)
    holding.clock.advance(10)
    waiting = asyncio.create_task(holding.hold.wait(1))  # 8 more seconds are within the hold time
    await asyncio.sleep(0.03)
    assert holding.hold.num_requests == 1
    holding.is_ready = True
    await waiting


@scenario
async def test_the_time_to_come_back_has_a_limit() -> None:
    holding = Holding(hold_seconds=10)
    await holding.start_replica(MAX_START_SECONDS)
    assert holding.hold.unavailable().details["retry_after"] == 10  # no start is under way
    holding.is_ready = False
    with pytest.raises(Unavailable) as raised:
        await holding.hold.wait(1)
    assert raised.value.details["retry_after"] == MAX_RETRY_SECONDS


@scenario
async def test_the_timeout_of_a_request_holds_while_it_waits() -> None:
    holding = Holding(hold_seconds=10)
    with pytest.raises(RequestTimeout):
        await holding.hold.wait(1, timeout=0.02)
    assert holding.hold.num_requests == 0
    holding = Holding(hold_seconds=0.02)
    with pytest.raises(Unavailable):
        await holding.hold.wait(1, timeout=10)


@scenario
async def test_an_outage_is_no_start() -> None:
    holding = Holding(hold_seconds=0.03)
    with pytest.raises(Unavailable):
        await holding.hold.wait(1)
    holding.clock.advance(3 * 3600)  # no other request comes
    await asyncio.sleep(0.2)
    holding.is_ready = True
    await asyncio.sleep(0.2)
    assert holding.hold.start_seconds is None
    await holding.start_replica(MAX_START_SECONDS + 1)
    assert holding.hold.start_seconds is None
    await holding.start_replica(10)
    assert holding.hold.start_seconds == pytest.approx(10)


@scenario
async def test_a_cancelled_request_is_not_counted_any_more() -> None:
    holding = Holding()
    waiting = asyncio.create_task(holding.hold.wait(5))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert holding.hold.num_requests == 0
    holding.hold.close()


@scenario
async def test_the_end_of_the_router_rejects_all_that_wait() -> None:
    holding = Holding()
    waiting = asyncio.create_task(holding.hold.wait(5))
    await asyncio.sleep(0)
    holding.hold.close()
    with pytest.raises(Unavailable, match="stops"):
        await waiting

"""Patience: who takes something now and then is waited for, who takes nothing is dropped, once."""

import asyncio
from typing import Any

import pytest

from chairlift.web.write_timeout import WriteTimeout

SHORT = 0.05


class Wire:
    """A connection whose client takes a piece when a test tells it to."""

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.is_taking = asyncio.Event()
        self.aborts = 0
        self.scope = {"state": {"abort": self.abort}}

    def abort(self) -> None:
        self.aborts += 1
        self.is_taking.set()  # as a server does whose connection is gone

    async def send(self, message: Any) -> None:
        await self.is_taking.wait()
        self.taken.append(message)


def run_scenario(scenario: Any) -> Wire:
    async def whole() -> Wire:
        wire = Wire()
        await asyncio.wait_for(scenario(wire), 20)
        return wire

    return asyncio.run(whole())


def test_who_takes_nothing_is_dropped() -> None:
    async def scenario(wire: Wire) -> None:
        with WriteTimeout(wire.scope, wire.send, SHORT) as patience:
            await patience.send({"body": b"x"})
            await asyncio.sleep(3 * SHORT)

    assert run_scenario(scenario).aborts == 1


def test_who_takes_each_piece_in_time_is_waited_for_however_long_all_takes() -> None:
    async def scenario(wire: Wire) -> None:
        with WriteTimeout(wire.scope, wire.send, 1.0) as patience:
            for number in range(6):
                asyncio.get_running_loop().call_later(0.25, wire.is_taking.set)
                await patience.send(number)
                wire.is_taking.clear()

    wire = run_scenario(scenario)
    assert wire.taken == list(range(6)) and wire.aborts == 0


def test_where_nothing_is_sent_no_client_is_waited_for() -> None:
    async def scenario(wire: Wire) -> None:
        wire.is_taking.set()
        with WriteTimeout(wire.scope, wire.send, SHORT) as patience:
            for number in range(3):
                await asyncio.sleep(2 * SHORT)
                await patience.send(number)

    assert run_scenario(scenario).aborts == 0


def test_it_counts_from_the_piece_that_waits() -> None:
    async def scenario(wire: Wire) -> None:
        wire.is_taking.set()
        loop = asyncio.get_running_loop()
        with WriteTimeout(wire.scope, wire.send, 4 * SHORT) as patience:
            await asyncio.sleep(2 * SHORT)
            wire.is_taking.clear()
            began = loop.time()
            await patience.send("late")
            assert wire.aborts == 1 and loop.time() - began >= 4 * SHORT * 0.99

    run_scenario(scenario)


@pytest.mark.parametrize("error", [None, RuntimeError("no")])
def test_behind_it_nothing_is_looked_at(error: Exception | None) -> None:
    async def scenario(wire: Wire) -> None:
        try:
            with WriteTimeout(wire.scope, wire.send, SHORT) as patience:
                sending = asyncio.create_task(patience.send("x"))
                await asyncio.sleep(0)
                if error is not None:
                    raise error
        except RuntimeError:
            pass
        await asyncio.sleep(3 * SHORT)
        assert wire.aborts == 0
        sending.cancel()

    run_scenario(scenario)

"""WriteTimeout: disconnects a client that reads nothing for too long, but no slow reader."""

import asyncio
from typing import Any

import pytest

from chairlift.web.write_timeout import WriteTimeout

SHORT_SECONDS = 0.05


class FakeConnection:
    """A connection whose client reads a message while `can_write` is set."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.can_write = asyncio.Event()
        self.aborts = 0
        self.scope = {"state": {"abort": self.abort}}

    def abort(self) -> None:
        self.aborts += 1
        self.can_write.set()  # as a server does after its connection is closed

    async def send(self, message: Any) -> None:
        await self.can_write.wait()
        self.messages.append(message)


def run_scenario(scenario: Any) -> FakeConnection:
    async def run() -> FakeConnection:
        connection = FakeConnection()
        await asyncio.wait_for(scenario(connection), 20)
        return connection

    return asyncio.run(run())


def test_who_takes_nothing_is_dropped() -> None:
    async def scenario(connection: FakeConnection) -> None:
        with WriteTimeout(connection.scope, connection.send, SHORT_SECONDS) as writer:
            await writer.send({"body": b"x"})
            await asyncio.sleep(3 * SHORT_SECONDS)

    assert run_scenario(scenario).aborts == 1


def test_who_takes_each_piece_in_time_is_waited_for_however_long_all_takes() -> None:
    async def scenario(connection: FakeConnection) -> None:
        with WriteTimeout(connection.scope, connection.send, 1.0) as writer:
            for number in range(6):
                asyncio.get_running_loop().call_later(0.25, connection.can_write.set)
                await writer.send(number)
                connection.can_write.clear()

    connection = run_scenario(scenario)
    assert connection.messages == list(range(6)) and connection.aborts == 0


def test_where_nothing_is_sent_no_client_is_waited_for() -> None:
    async def scenario(connection: FakeConnection) -> None:
        connection.can_write.set()
        with WriteTimeout(connection.scope, connection.send, SHORT_SECONDS) as writer:
            for number in range(3):
                await asyncio.sleep(2 * SHORT_SECONDS)
                await writer.send(number)

    assert run_scenario(scenario).aborts == 0


def test_it_counts_from_the_piece_that_waits() -> None:
    async def scenario(connection: FakeConnection) -> None:
        connection.can_write.set()
        loop = asyncio.get_running_loop()
        with WriteTimeout(connection.scope, connection.send, 4 * SHORT_SECONDS) as writer:
            await asyncio.sleep(2 * SHORT_SECONDS)
            connection.can_write.clear()
            start = loop.time()
            await writer.send("late")
            assert connection.aborts == 1 and loop.time() - start >= 4 * SHORT_SECONDS * 0.99

    run_scenario(scenario)


@pytest.mark.parametrize("error", [None, RuntimeError("no")])
def test_behind_it_nothing_is_looked_at(error: Exception | None) -> None:
    async def scenario(connection: FakeConnection) -> None:
        try:
            with WriteTimeout(connection.scope, connection.send, SHORT_SECONDS) as writer:
                task = asyncio.create_task(writer.send("x"))
                await asyncio.sleep(0)
                if error is not None:
                    raise error
        except RuntimeError:
            pass
        await asyncio.sleep(3 * SHORT_SECONDS)
        assert connection.aborts == 0
        task.cancel()

    run_scenario(scenario)

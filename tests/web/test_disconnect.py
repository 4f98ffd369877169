"""DisconnectWatcher: cancels and cleans up the work of a client that disconnects, and no other work."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from chairlift.web.body import ClientGone
from chairlift.web.disconnect import DisconnectWatcher

PATIENCE = 20.0


class Client:
    """Sends the rest of a body perhaps, and leaves when a test tells it to."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)
        self.left = asyncio.Event()
        self.is_listened_to = False

    async def __call__(self) -> dict[str, Any]:
        if self._pieces:
            return {"type": "http.request", "body": self._pieces.pop(0), "more_body": False}
        self.is_listened_to = True
        try:
            await self.left.wait()
        finally:
            self.is_listened_to = False
        return {"type": "http.disconnect"}


def run_scenario(scenario: Callable[[], Awaitable[Any]]) -> Any:
    async def whole() -> Any:
        result = await scenario()
        for _ in range(3):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    async def bounded() -> Any:
        async with asyncio.timeout(PATIENCE):
            return await whole()

    return asyncio.run(bounded())


@pytest.mark.parametrize("pieces", [(), (b"", b"")])
def test_work_of_a_connected_client_is_left_alone(pieces: tuple[bytes, ...]) -> None:
    async def scenario() -> str:
        client = Client(*pieces)
        async with DisconnectWatcher(client):
            await asyncio.sleep(0.01)
            assert client.is_listened_to
            result = "done"
        await asyncio.sleep(0)
        assert not client.is_listened_to
        return result

    assert run_scenario(scenario) == "done"


@pytest.mark.parametrize("pieces", [(), (b"", b"")])
def test_work_of_a_disconnected_client_is_cancelled_and_cleaned_up(pieces: tuple[bytes, ...]) -> None:
    """57."""
    seen: list[str] = []

    async def scenario() -> None:
        client = Client(*pieces)
        asyncio.get_running_loop().call_later(0.01, client.left.set)

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                seen.append("cleaned up")

        with pytest.raises(ClientGone):
            async with DisconnectWatcher(client):
                await work()
        seen.append("and further")
        await asyncio.sleep(0.001)
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0

    run_scenario(scenario)
    assert seen == ["cleaned up", "and further"]


def test_a_client_that_left_before_is_gone_at_the_first_wait() -> None:
    async def scenario() -> None:
        client = Client()
        client.left.set()
        with pytest.raises(ClientGone):
            async with DisconnectWatcher(client):
                await asyncio.Event().wait()

    run_scenario(scenario)


def test_leaving_behind_the_complete_answer_is_nothing() -> None:
    """uvicorn says disconnect as soon as an answer is complete."""

    async def scenario() -> str:
        client = Client()
        async with DisconnectWatcher(client) as presence:
            await asyncio.sleep(0)
            presence.response_complete()
            client.left.set()
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.001)
        return "done"

    assert run_scenario(scenario) == "done"


def test_leaving_behind_the_block_is_nothing() -> None:
    async def scenario() -> str:
        client = Client()
        async with DisconnectWatcher(client):
            await asyncio.sleep(0)
        client.left.set()
        await asyncio.sleep(0.01)
        return "done"

    assert run_scenario(scenario) == "done"


def test_leaving_in_the_moment_of_the_end_is_nothing() -> None:
    async def scenario() -> str:
        client = Client()
        async with DisconnectWatcher(client):
            await asyncio.sleep(0)
            client.left.set()
        await asyncio.sleep(0.01)
        return "done"

    assert run_scenario(scenario) == "done"


@pytest.mark.parametrize("error", [ValueError("x"), ClientGone("x")])
def test_errors_of_the_work_pass(error: Exception) -> None:
    async def scenario() -> None:
        async def work() -> None:
            await asyncio.sleep(0)
            raise error

        with pytest.raises(type(error)) as caught:
            async with DisconnectWatcher(Client()):
                await work()
        assert caught.value is error

    run_scenario(scenario)


def test_a_cancelling_from_outside_stays_one() -> None:
    """A server that leaves cancels its requests: that is no client that left."""

    async def scenario() -> None:
        client = Client()

        async def work() -> None:
            async with DisconnectWatcher(client):
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    run_scenario(scenario)


def test_a_cancelling_from_outside_wins_over_a_client_that_leaves() -> None:
    async def scenario() -> None:
        client = Client()

        async def work() -> None:
            async with DisconnectWatcher(client):
                try:
                    await asyncio.Event().wait()
                finally:
                    await asyncio.sleep(0.01)

        task = asyncio.create_task(work())
        await asyncio.sleep(0.001)
        client.left.set()
        await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    run_scenario(scenario)


def test_a_timeout_inside_is_still_a_timeout() -> None:
    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            async with DisconnectWatcher(Client()), asyncio.timeout(0.005):
                await asyncio.Event().wait()

    run_scenario(scenario)


def test_a_client_that_leaves_within_a_timeout_is_gone_and_not_late() -> None:
    async def scenario() -> None:
        client = Client()
        asyncio.get_running_loop().call_later(0.005, client.left.set)
        with pytest.raises(ClientGone):
            async with DisconnectWatcher(client), asyncio.timeout(PATIENCE):
                await asyncio.Event().wait()

    run_scenario(scenario)

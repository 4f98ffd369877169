"""DisconnectWatcher: cancels the work of a client that disconnects, and no other work."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from chairlift.web.body import ClientGone
from chairlift.web.disconnect import DisconnectWatcher
from support_http import TIMEOUT_SECONDS


class Client:
    """A client that sends parts of a body, and disconnects when `disconnect` is set."""

    def __init__(self, *parts: bytes) -> None:
        self._parts = list(parts)
        self.disconnect = asyncio.Event()
        self.is_read = False

    async def __call__(self) -> dict[str, Any]:
        if self._parts:
            return {"type": "http.request", "body": self._parts.pop(0), "more_body": False}
        self.is_read = True
        try:
            await self.disconnect.wait()
        finally:
            self.is_read = False
        return {"type": "http.disconnect"}


def run_scenario(scenario: Callable[[], Awaitable[Any]]) -> Any:
    async def run_and_check_tasks() -> Any:
        result = await scenario()
        for _ in range(3):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    async def run_with_timeout() -> Any:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await run_and_check_tasks()

    return asyncio.run(run_with_timeout())


@pytest.mark.parametrize("parts", [(), (b"", b"")])
def test_work_of_a_connected_client_is_left_alone(parts: tuple[bytes, ...]) -> None:
    async def scenario() -> str:
        client = Client(*parts)
        async with DisconnectWatcher(client):
            await asyncio.sleep(0.01)
            assert client.is_read
            result = "done"
        await asyncio.sleep(0)
        assert not client.is_read
        return result

    assert run_scenario(scenario) == "done"


@pytest.mark.parametrize("parts", [(), (b"", b"")])
def test_work_of_a_disconnected_client_is_cancelled_and_cleaned_up(parts: tuple[bytes, ...]) -> None:
    """Case 57 of the HTTP contract."""
    events: list[str] = []

    async def scenario() -> None:
        client = Client(*parts)
        asyncio.get_running_loop().call_later(0.01, client.disconnect.set)

        async def wait_and_clean_up() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                events.append("cleaned up")

        with pytest.raises(ClientGone):
            async with DisconnectWatcher(client):
                await wait_and_clean_up()
        events.append("and further")
        await asyncio.sleep(0.001)
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0

    run_scenario(scenario)
    assert events == ["cleaned up", "and further"]


def test_a_client_that_left_before_is_gone_at_the_first_wait() -> None:
    async def scenario() -> None:
        client = Client()
        client.disconnect.set()
        with pytest.raises(ClientGone):
            async with DisconnectWatcher(client):
                await asyncio.Event().wait()

    run_scenario(scenario)


def test_leaving_behind_the_complete_answer_is_nothing() -> None:
    """uvicorn sends http.disconnect as soon as a response is complete."""

    async def scenario() -> str:
        client = Client()
        async with DisconnectWatcher(client) as watcher:
            await asyncio.sleep(0)
            watcher.response_complete()
            client.disconnect.set()
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.001)
        return "done"

    assert run_scenario(scenario) == "done"


def test_leaving_behind_the_block_is_nothing() -> None:
    async def scenario() -> str:
        client = Client()
        async with DisconnectWatcher(client):
            await asyncio.sleep(0)
        client.disconnect.set()
        await asyncio.sleep(0.01)
        return "done"

    assert run_scenario(scenario) == "done"


def test_leaving_in_the_moment_of_the_end_is_nothing() -> None:
    async def scenario() -> str:
        client = Client()
        async with DisconnectWatcher(client):
            await asyncio.sleep(0)
            client.disconnect.set()
        await asyncio.sleep(0.01)
        return "done"

    assert run_scenario(scenario) == "done"


@pytest.mark.parametrize("error", [ValueError("x"), ClientGone("x")])
def test_errors_of_the_work_pass(error: Exception) -> None:
    async def scenario() -> None:
        async def fail() -> None:
            await asyncio.sleep(0)
            raise error

        with pytest.raises(type(error)) as caught:
            async with DisconnectWatcher(Client()):
                await fail()
        assert caught.value is error

    run_scenario(scenario)


def test_a_cancelling_from_outside_stays_one() -> None:
    """A server that stops cancels its requests, which is not a disconnect of the client."""

    async def scenario() -> None:
        client = Client()

        async def wait_for_ever() -> None:
            async with DisconnectWatcher(client):
                await asyncio.Event().wait()

        task = asyncio.create_task(wait_for_ever())
        await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    run_scenario(scenario)


def test_a_cancelling_from_outside_wins_over_a_client_that_leaves() -> None:
    async def scenario() -> None:
        client = Client()

        async def wait_for_ever() -> None:
            async with DisconnectWatcher(client):
                try:
                    await asyncio.Event().wait()
                finally:
                    await asyncio.sleep(0.01)

        task = asyncio.create_task(wait_for_ever())
        await asyncio.sleep(0.001)
        client.disconnect.set()
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
        asyncio.get_running_loop().call_later(0.005, client.disconnect.set)
        with pytest.raises(ClientGone):
            async with DisconnectWatcher(client), asyncio.timeout(TIMEOUT_SECONDS):
                await asyncio.Event().wait()

    run_scenario(scenario)

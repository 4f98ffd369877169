"""BodyReader: where bodies are parsed, by size and content."""

import asyncio
import threading
from typing import Any

import pytest

from chairlift.core.errors import Unavailable
from chairlift.server.body_reader import LARGE_BODY_BYTES, SMALL_BODY_BYTES, TINY_BODY_BYTES
from chairlift.server.replica import Replica
from chairlift.web.request_info import SCOPE_KEY, RequestInfo
from support_process import TIMEOUT_SECONDS
from support_replica import with_replica


@pytest.mark.parametrize(
    ("size", "is_same_thread"), [(10, True), (SMALL_BODY_BYTES, True), (SMALL_BODY_BYTES + 1, False)]
)
def test_a_large_body_is_read_in_a_thread(size: int, is_same_thread: bool) -> None:
    async def check(replica: Replica) -> None:
        body, threads = b'{"x": "%s"}' % (b"x" * (size - 9)), []

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        def parse(result: dict[str, Any]) -> int:
            threads.append(threading.current_thread())
            return len(result["x"])

        assert await replica.bodies.parse_body({"headers": []}, receive, parse) == len(body) - 9
        assert (threads == [threading.current_thread()]) is is_same_thread

    with_replica(check)


@pytest.mark.parametrize(
    ("body", "is_same_thread"),
    [
        (b'{"prompt": "x"}', True), (b'{"tools": []}', False), (b'{"guided_json": {}}', False),
        (b'{"response_format": {"type": "json_schema"}}', False), (b'{"\\u0074ools": []}', False),
    ],
)  # fmt: skip
def test_a_body_that_may_have_a_schema_is_read_in_a_thread(body: bytes, is_same_thread: bool) -> None:
    async def check(replica: Replica) -> None:
        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        thread = await replica.bodies.parse_body({"headers": []}, receive, lambda _: threading.current_thread())
        assert (thread is threading.current_thread()) is is_same_thread

    with_replica(check)


def sized_scope(body_bytes: int) -> dict[str, Any]:
    return {SCOPE_KEY: RequestInfo(body_bytes=body_bytes)}


def test_large_bodies_are_parsed_one_after_the_other_and_block_no_other_request() -> None:
    async def check(replica: Replica) -> None:
        gate, large = threading.Event(), sized_scope(LARGE_BODY_BYTES + 1)
        first = asyncio.create_task(replica.bodies.run_by_body_size(lambda: gate.wait(TIMEOUT_SECONDS), large))
        second = asyncio.create_task(replica.bodies.run_by_body_size(gate.is_set, large))
        sizes = (0, LARGE_BODY_BYTES)
        tasks = [replica.bodies.run_by_body_size(threading.get_ident, sized_scope(size)) for size in sizes]
        for other in (replica.bodies.in_thread(threading.get_ident), *tasks):
            assert await other and not gate.is_set()
        assert not first.done() and not second.done()
        gate.set()
        assert await first and await second

    with_replica(check)


@pytest.mark.parametrize(
    ("size", "thread"),
    [
        (TINY_BODY_BYTES, "MainThread"), (TINY_BODY_BYTES + 1, "chairlift-text"),
        (LARGE_BODY_BYTES, "chairlift-text"), (LARGE_BODY_BYTES + 1, "chairlift-large"),
    ],
)  # fmt: skip
def test_a_body_says_by_its_size_where_its_text_becomes_tokens(size: int, thread: str) -> None:
    async def check(replica: Replica) -> None:
        messages = [{"type": "http.request", "body": b"{}" + b" " * (size - 2)}]

        async def receive() -> Any:
            return messages.pop()

        scope: dict[str, Any] = {"headers": []}
        await replica.bodies.parse_body(scope, receive, lambda body: body)
        name = await replica.bodies.run_by_body_size(lambda: threading.current_thread().name, scope)
        assert name.startswith(thread)

    with_replica(check)


def test_a_body_is_not_read_where_no_request_would_be_served() -> None:
    async def check(replica: Replica) -> None:
        replica.lifecycle.drain()
        with pytest.raises(Unavailable):
            await replica.bodies.parse_body({"headers": []}, pytest.fail, dict)

    with_replica(check)

"""attempt_task: errors that replicas answer, and requests on connections that a replica has closed."""

import asyncio
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import pytest

from chairlift.router.attempts.events import (
    AttemptBroken,
    ConnectFailed,
    FailureReason,
    RequestSent,
    ResponseEnded,
    ResponseReceived,
)
from chairlift.router.proxy.attempt_task import MAX_ERROR_BYTES, retry_after_seconds
from support_attempt_task import AttemptLog, attempt, events_of, raw, upstream_of
from support_router import Connection, ReceivedRequest, scripted
from support_server import run
from support_shares import for_each

SENT, OK = RequestSent(1), ResponseReceived(1, 200)
RESET = AttemptBroken(1, FailureReason.RESET)

# -- errors of replicas ------------------------------------------------------------------------------------------------

DATE = "Wed, 21 Oct 2015 07:28:00 GMT"


@for_each(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after-ms": "inf", "retry-after": "2"}, 2.0),
        ({"retry-after": DATE, "date": "Wed, 21 Oct 2015 07:27:18 GMT"}, 42.0),
        ({"retry-after": DATE, "date": "Wed, 21 Oct 2015 07:29:00 GMT"}, 0.0),
        ({"retry-after": DATE}, 60.0),
        ({"retry-after": DATE, "date": "today"}, 60.0),
        ({"retry-after": "Wed, 21 Oct 99999 07:28:00 GMT"}, None),
    ],
)
def test_when_a_replica_takes_requests_again(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_seconds(headers, now=1445412420.0) == seconds


@for_each("status", [429, 503])
@for_each(
    ("header", "value", "seconds"),
    [("retry-after", "3", 3.0), ("retry-after-ms", "250", 0.25), ("retry-after", "", 30)],
)
def test_a_full_replica_reports_when_it_has_room(status: int, header: str, value: str, seconds: float) -> None:
    async def full(connection: Connection, request: ReceivedRequest) -> None:
        date = {"date": formatdate(time.time(), usegmt=True)}
        until = value or formatdate(time.time() + 30, usegmt=True)
        await connection.respond({"error": {}}, status, **{header.replace("-", "_"): until}, **date)

    assert events_of(full) == [SENT, ResponseReceived(1, status, pytest.approx(seconds, abs=1))]


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_the_error_of_a_replica_is_reported_without_waiting_for_its_body(status: int) -> None:
    async def late(connection: Connection, request: ReceivedRequest) -> None:
        await connection.head(status)
        await log.wait_for(2)
        connection.reset()

    log = AttemptLog()
    assert events_of(late, log=log) == [SENT, ResponseReceived(1, status)]


def test_the_connection_of_an_error_is_used_again() -> None:
    async def full(connection: Connection, request: ReceivedRequest) -> None:
        ports.add(connection.port)
        await connection.respond({"error": {}}, 429)

    async def scenario() -> None:
        async with scripted(full) as replica, upstream_of() as upstream:
            for _ in range(3):
                await attempt(upstream, replica.url)

    ports: set[int] = set()
    run(scenario())
    assert len(ports) == 1


@pytest.mark.parametrize("status", [302, 400, 404, 422])
def test_another_error_comes_with_its_body(status: int) -> None:
    async def wrong(connection: Connection, request: ReceivedRequest) -> None:
        await connection.respond({"error": 1}, status)

    assert events_of(wrong) == [SENT, ResponseReceived(1, status, None, b'{"error": 1}')]


def test_an_error_body_over_the_limit_is_cut() -> None:
    async def wrong(connection: Connection, request: ReceivedRequest) -> None:
        await connection.head(400)
        while True:
            await connection.piece(b"x" * 65_536)

    assert events_of(wrong) == [SENT, ResponseReceived(1, 400, None, b"x" * MAX_ERROR_BYTES)]


def test_a_cut_body_of_a_clients_error_is_a_reset() -> None:
    script = raw(b"HTTP/1.1 400 Bad\r\ncontent-length: 90\r\n\r\n{")
    assert events_of(script) == [SENT, RESET]


# -- connections that a replica has closed -----------------------------------------------------------------------------


class Closing:
    """Answers the first request of each connection; the next one meets its end, or what else a test says."""

    def __init__(self, second: Callable[[Connection], None]) -> None:
        self.second = second
        self.ports: list[int] = []

    async def __call__(self, connection: Connection, request: ReceivedRequest) -> None:
        is_known = connection.port in self.ports
        self.ports.append(connection.port)
        if is_known:
            self.second(connection)
        else:
            await connection.respond({})


GOOD = [SENT, OK, ResponseEnded(1, b"{}")]


@pytest.mark.parametrize("end", [Connection.close, Connection.reset], ids=["closed", "reset"])
@pytest.mark.parametrize(("method", "body"), [("POST", b"{}"), ("GET", None)])
def test_a_request_on_a_connection_that_was_closed_is_sent_again_to_the_same_replica(
    end: Any, method: str, body: bytes | None
) -> None:
    async def scenario() -> None:
        script = Closing(end)
        async with scripted(script) as replica, upstream_of() as upstream:
            assert (await attempt(upstream, replica.url)).events == GOOD
            assert (await attempt(upstream, replica.url, method=method, body=body)).events == GOOD
            first, second, third = script.ports
            assert first == second != third
            assert replica.requests[1].body == replica.requests[2].body

    run(scenario())


def test_a_request_on_a_new_connection_that_was_closed_is_not_sent_again() -> None:
    async def scenario() -> None:
        async with scripted(raw()) as replica, upstream_of() as upstream:
            assert (await attempt(upstream, replica.url)).events == [SENT, RESET]
            assert len(replica.requests) == 1

    run(scenario())


def test_all_idle_connections_of_a_replica_may_be_closed() -> None:
    async def script(connection: Connection, request: ReceivedRequest) -> None:
        is_known = connection.port in ports
        ports.add(connection.port)
        if is_known:
            connection.close()
            return
        if len(ports) == 2:
            both.set()
        await both.wait()
        await connection.respond({})

    async def scenario() -> None:
        async with scripted(script) as replica, upstream_of() as upstream:
            await asyncio.gather(*(attempt(upstream, replica.url) for _ in range(2)))
            assert (await attempt(upstream, replica.url)).events == GOOD
            assert len(replica.requests) == 4 and len(ports) == 3

    ports, both = set[int](), asyncio.Event()
    run(scenario())


def half_a_head(connection: Connection) -> None:
    connection.write(b"HTTP/1.1 200 OK\r\n")
    connection.close()


def half_a_body(connection: Connection) -> None:
    connection.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{")
    connection.close()


@pytest.mark.parametrize(("second", "events"), [(half_a_head, [SENT, RESET]), (half_a_body, [SENT, OK, RESET])])
def test_a_request_of_which_a_byte_came_back_is_not_sent_again(second: Any, events: Any) -> None:
    async def scenario() -> None:
        script = Closing(second)
        async with scripted(script) as replica, upstream_of() as upstream:
            assert (await attempt(upstream, replica.url)).events == GOOD
            assert (await attempt(upstream, replica.url)).events == events
            assert len(script.ports) == 2

    run(scenario())


def test_a_request_that_is_lost_on_the_new_connection_too_is_a_reset() -> None:
    async def script(connection: Connection, request: ReceivedRequest) -> None:
        ports.append(connection.port)
        if len(ports) == 1:
            await connection.respond({})
        else:
            connection.close()

    async def scenario() -> None:
        async with scripted(script) as replica, upstream_of() as upstream:
            assert (await attempt(upstream, replica.url)).events == GOOD
            assert (await attempt(upstream, replica.url)).events == [SENT, RESET]
            assert len(ports) == 3

    ports: list[int] = []
    run(scenario())


def test_a_replica_that_is_gone_refuses_the_new_connection() -> None:
    async def script(connection: Connection, request: ReceivedRequest) -> None:
        if len(replica.requests) == 1:
            await connection.respond({})
        else:
            replica.stop()
            connection.reset()

    async def scenario() -> None:
        nonlocal replica
        async with scripted(script) as replica, upstream_of() as upstream:
            assert (await attempt(upstream, replica.url)).events == GOOD
            assert (await attempt(upstream, replica.url)).events == [SENT, ConnectFailed(1)]

    replica: Any = None
    run(scenario())


def test_a_request_that_may_not_be_repeated_is_sent_once() -> None:
    async def scenario() -> None:
        script = Closing(Connection.close)
        async with scripted(script) as replica, upstream_of() as upstream:
            assert (await attempt(upstream, replica.url)).events == GOOD
            assert (await attempt(upstream, replica.url, is_repeatable=False)).events == GOOD
            assert len(replica.requests) == 2 and len(set(script.ports)) == 2, "it has a connection of its own"

    run(scenario())

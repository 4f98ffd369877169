"""request_proxy: what ends a request, slow clients, and heads of responses, without a served router."""

import asyncio
from typing import Any

import pytest

from chairlift.core.errors import Unavailable
from chairlift.core.router_errors import ReplicaFailed
from chairlift.router.attempts.attempt import AttemptLimits
from chairlift.router.proxy import request_proxy
from chairlift.router.proxy.upstream import READ_BUFFER_BYTES
from support_request_proxy import DONE, proxy_run, text_event, token_event
from support_router import Connection, ReceivedRequest, scripted
from support_server import run

DATA = [text_event(number) for number in range(3)]


async def stream(connection: Connection, request: ReceivedRequest) -> None:
    await connection.stream_head(cache_control="no-cache")
    for piece in (*DATA, DONE):
        await connection.piece(piece)
    await connection.end()


async def begun(connection: Connection, request: ReceivedRequest) -> None:
    await connection.stream_head()
    await connection.piece(DATA[0])
    await asyncio.Event().wait()


async def hang(connection: Connection, request: ReceivedRequest) -> None:
    await asyncio.Event().wait()


async def invalid(connection: Connection, request: ReceivedRequest) -> None:
    await connection.respond({"error": {"message": "bad", "code": "x"}}, 422)


def test_a_bug_in_an_attempt_costs_that_attempt_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = request_proxy.run_attempt

    async def fail_first(*args: Any) -> None:
        calls.append(args[2].attempt)
        if len(calls) == 1:
            raise ZeroDivisionError
        await real(*args)

    async def scenario() -> None:
        monkeypatch.setattr(request_proxy, "run_attempt", fail_first)
        async with scripted(stream) as one, scripted(stream) as two, proxy_run([one.url, two.url]) as made:
            await made.proxy.run()
            assert made.content == b"".join((*DATA, DONE)) and calls == [1, 2]
            assert [each.outcome for each in made.picker.outcomes] == ["neutral", "success"], "the replica is not ill"
            made.assert_all_ended()

    calls: list[int] = []
    run(scenario())
    assert "attempt 1 of request r-1 failed" in caplog.text and "ZeroDivisionError" in caplog.text


def test_a_bug_in_every_attempt_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail_always(*args: Any) -> None:
        raise ZeroDivisionError

    async def scenario() -> None:
        monkeypatch.setattr(request_proxy, "run_attempt", fail_always)
        async with proxy_run(["http://a", "http://b", "http://c", "http://d"]) as made:
            with pytest.raises(ReplicaFailed, match="3 attempts failed, which is the limit"):
                await made.proxy.run()
            assert not made.messages and made.proxy.num_attempts == 3
            made.assert_all_ended()

    run(scenario())


def test_a_client_that_fails_ends_the_request_everywhere() -> None:
    async def lose() -> None:
        raise OSError("the client is gone")

    async def scenario() -> None:
        async with scripted(begun) as one, proxy_run([one.url]) as made:
            made.on_write = lose
            with pytest.raises(OSError, match="gone"):
                await made.proxy.run()
            assert [each.outcome for each in made.picker.outcomes] == ["neutral"]
            made.assert_all_ended()

    run(scenario())


def test_a_request_that_is_cancelled_aborts_its_attempt() -> None:
    async def scenario() -> None:
        async with scripted(hang) as one, proxy_run([one.url], deadline=60.0) as made:
            task = asyncio.create_task(made.proxy.run())
            while not one.requests:
                await asyncio.sleep(0.001)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() and not made.messages
            assert [each.outcome for each in made.picker.outcomes] == ["neutral"]
            made.assert_all_ended()

    run(scenario())


@pytest.mark.parametrize("is_paused", [False, True])
def test_the_time_between_tokens_is_the_replicas_and_not_that_of_a_slow_client(is_paused: bool) -> None:
    """The tokens come a second apart while the client needs 100 s for the first; none counts if reading paused."""

    async def scenario() -> None:
        due: asyncio.Queue[bytes] = asyncio.Queue()

        async def stream(connection: Connection, request: ReceivedRequest) -> None:
            await connection.stream_head()
            while (piece := await due.get()) != DONE:
                await connection.piece(piece)
            await connection.piece(DONE)
            await connection.end()

        async with scripted(stream) as one, proxy_run([one.url], fingerprint="w") as made:

            async def read_slowly() -> None:
                made.on_write = None
                for number in (1, 2):
                    made.clock.advance(1.0)
                    await due.put(token_event(number, is_last=number == 2))
                    while len(made.proxy._events) < number:
                        await asyncio.sleep(0.001)
                if is_paused:
                    assert made.proxy._wait_until_read(request_proxy.MAX_UNREAD_BYTES) is not None
                made.clock.advance(100.0)
                await due.put(DONE)

            made.on_write = read_slowly
            await due.put(token_event(0))
            await made.proxy.run()
            expected = None if is_paused else 1.0
            assert [each.outcome for each in made.picker.outcomes] == ["success"]
            assert [each.inter_token_seconds for each in made.picker.outcomes] == [expected]
            assert made.proxy._machine.response.mean_inter_token_seconds == expected
            assert made.content.endswith(DONE)

    run(scenario())


def test_a_deadline_within_a_stream_ends_it_with_an_error_event() -> None:
    async def scenario() -> None:
        async with scripted(begun) as one, proxy_run([one.url], deadline=0.1) as made:
            await made.proxy.run()
            assert made.content.startswith(DATA[0] + b"event: error\ndata: ") and DONE not in made.content
            assert made.proxy.error_code == "timeout" and made.messages[-1]["more_body"] is False
            made.assert_all_ended()

    run(scenario())


@pytest.mark.parametrize("blocked_seconds", [1.0, 0.3], ids=["slow client", "slow replica"])
def test_the_time_for_which_a_client_blocks_is_not_that_of_the_replica(blocked_seconds: float) -> None:
    async def script(connection: Connection, request: ReceivedRequest) -> None:
        await connection.stream_head()
        await connection.piece(DATA[0])
        await unblocked.wait()
        await connection.piece(DATA[1] + DONE)
        await connection.end()

    async def scenario() -> None:
        async def block() -> None:
            if not unblocked.is_set():
                await asyncio.sleep(0.03)  # the timer fires meanwhile
                made.clock.advance(blocked_seconds)
                unblocked.set()

        limits = AttemptLimits(inter_token_timeout_seconds=0.02)
        async with scripted(script) as one, proxy_run([one.url], limits=limits) as made:
            made.on_write = block
            await made.proxy.run()
            if blocked_seconds > request_proxy.SLOW_CLIENT_SECONDS:
                assert made.content == DATA[0] + DATA[1] + DONE
            else:
                assert b"the next token came too late" in made.content
            made.assert_all_ended()

    unblocked = asyncio.Event()
    run(scenario())


def test_a_slow_client_bounds_what_the_router_holds_of_its_response() -> None:
    piece = b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % (b"x" * 1_000)
    number = 10_000

    async def much(connection: Connection, request: ReceivedRequest) -> None:
        await connection.stream_head()
        for _ in range(number):
            await connection.piece(piece)
            num_sent[0] += 1
        await connection.piece(DONE)
        await connection.end()

    async def scenario() -> None:
        release, is_blocked = asyncio.Event(), asyncio.Event()

        async def block() -> None:
            is_blocked.set()
            await release.wait()

        async with scripted(much) as one, proxy_run([one.url]) as made:
            made.on_write = block
            task = asyncio.create_task(made.proxy.run())
            await is_blocked.wait()
            before = -1
            while before != num_sent[0]:  # until the replica can send no more
                before = num_sent[0]
                await asyncio.sleep(0.05)
            held = sum(len(chunk.payload) for event, _ in made.proxy._events for chunk in event.chunks)  # type: ignore[union-attr]
            assert 0 < held <= request_proxy.MAX_UNREAD_BYTES + 2 * READ_BUFFER_BYTES
            release.set()
            await task
            assert made.content == piece * number + DONE

    num_sent = [0]
    run(scenario())


def test_the_head_of_a_response_is_that_of_the_attempt_which_brought_it() -> None:
    async def broken(connection: Connection, request: ReceivedRequest) -> None:
        connection.write(b"HTTP/1.1 500 Bad\r\ncontent-length: 99\r\nx-own: one\r\n\r\n")

    async def fine(connection: Connection, request: ReceivedRequest) -> None:
        connection.write(b"HTTP/1.1 206 Fine\r\ncontent-length: 17\r\nx-own: two\r\nx-chairlift-load: v=1\r\n\r\n")

    async def scenario() -> None:
        async with (
            scripted(broken) as one,
            scripted(fine) as two,
            proxy_run([one.url, two.url], method="HEAD", is_streamed=False) as made,
        ):
            await made.proxy.run()
            head, body = made.messages
            assert head["status"] == 206 and body["body"] == b"" and body["more_body"] is False
            assert head["headers"] == [
                (b"content-length", b"17"), (b"x-own", b"two"), (b"x-from", f"{two.url} 2".encode()),
            ]  # fmt: skip
            assert made.proxy.reservation is made.picker.reservations[1] and made.first_outputs == [False]
            assert [each.load_headers for each in made.picker.reservations] == [[], ["v=1"]]
            made.assert_all_ended()

    run(scenario())


@pytest.mark.parametrize("status", [204, 200])
def test_an_empty_response_keeps_its_status_and_headers(status: int) -> None:
    async def empty(connection: Connection, request: ReceivedRequest) -> None:
        length = b"" if status == 204 else b"content-length: 0\r\n"
        connection.write(b"HTTP/1.1 %d Empty\r\n%sx-own: 1\r\n\r\n" % (status, length))

    async def scenario() -> None:
        async with scripted(empty) as one, proxy_run([one.url], is_streamed=False) as made:
            await made.proxy.run()
            assert made.head["status"] == status and (b"x-own", b"1") in made.head["headers"]
            assert ((b"content-length", b"0") in made.head["headers"]) is (status == 200)

    run(scenario())


def test_a_clients_error_has_the_headers_of_its_replica() -> None:
    async def scenario() -> None:
        async with scripted(invalid) as one, proxy_run([one.url]) as made:
            await made.proxy.run()
            assert made.head["status"] == 422 and made.first_outputs == []
            assert (b"x-from", f"{one.url} 1".encode()) in made.head["headers"]
            assert (b"content-length", b"%d" % len(made.content)) in made.head["headers"]
            made.assert_all_ended()

    run(scenario())


def test_without_any_replica_the_error_says_so() -> None:
    async def scenario() -> None:
        async with proxy_run([]) as made:
            with pytest.raises(Unavailable, match="no replica can take the request now") as caught:
                await made.proxy.run()
            assert caught.value.details["retry_after"] > 0
            made.assert_all_ended()

    run(scenario())


def test_an_abort_before_the_first_byte_is_an_error_with_its_own_status() -> None:
    async def scenario() -> None:
        async with scripted(hang) as one, proxy_run([one.url]) as made:
            task = asyncio.create_task(made.proxy.run())
            while not one.requests:
                await asyncio.sleep(0.001)
            made.proxy.abort()
            with pytest.raises(Unavailable, match="the router stops") as caught:
                await task
            assert caught.value.details["state"] == "draining" and not made.messages
            made.assert_all_ended()

    run(scenario())

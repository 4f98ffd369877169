"""LoadPhase: requests are sent when due or so many at a time, lags are measured, and each fault has an outcome."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import islice, repeat
from typing import Any

import pytest

from chairlift.bench.offline.run_spec import WorkloadSpec
from chairlift.bench.server.api_requests import PreparedRequest, PreparedRequests, RequestFormat
from chairlift.bench.server.http_client import Client, ExchangeEnd, ExchangeEndKind, ResponseHandler
from chairlift.bench.server.http_request_record import HttpRequestRecord, Outcome
from chairlift.bench.server.loadgen import GC_THRESHOLDS, LoadPhase, in_own_loop
from chairlift.bench.server.server_address import Address
from chairlift.engine.runner.fake_model import FakeConfig
from support_scripted_server import (
    HEAD,
    ReceivedRequest,
    Script,
    ScriptedServer,
    chunk,
    event,
    plain_response,
    respond_with,
    scripted_server,
    stream_response,
    text_chunk,
)
from support_server import fake_server, run
from support_shares import for_each

SHOT = PreparedRequest(0.0, b"GET / HTTP/1.1\r\n\r\n", 0)


class Slow:
    """A slow server without a socket."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.open = self.most = 0

    async def send(self, request: bytes, taker: ResponseHandler, seconds: float) -> ExchangeEnd:
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.open -= 1
        return ExchangeEnd(ExchangeEndKind.CONNECTION_LOST, asyncio.get_running_loop().time(), "slow")


@asynccontextmanager
async def phase_over(client: Any, timeout: float = 20.0) -> AsyncIterator[LoadPhase]:
    phase = LoadPhase(client, timeout)
    try:
        yield phase
    finally:
        await phase.end()


async def once(script: Script, timeout: float = 20.0) -> tuple[HttpRequestRecord, ScriptedServer]:
    """Send one request to a scripted server."""
    async with scripted_server(script) as server:
        client = Client(Address.of(server.url))
        deck = PreparedRequests(WorkloadSpec(name="uniform"), 100, RequestFormat(model="m"), client)
        async with phase_over(client, timeout) as phase:
            await phase.open_loop([next(deck)])
            await phase.wait_until_done()
        client.close()
        return phase.records[0], server


def test_an_open_loop_does_not_wait_for_responses() -> None:
    async def main() -> None:
        slow = Slow(60.0)
        async with phase_over(slow) as phase:
            await phase.open_loop(PreparedRequest(place / 100, b"", 7) for place in range(10))
            await asyncio.sleep(0)
            assert slow.open == 10
        assert [record.due for record in phase.records] == [place / 100 for place in range(10)]
        assert all(record.sent >= record.due and record.requested_tokens == 7 for record in phase.records)

    run(main())


def test_what_was_due_long_ago_is_sent_at_once_and_its_lag_is_known() -> None:
    async def main() -> None:
        async with phase_over(Slow(0.0)) as phase:
            await asyncio.sleep(0.2)
            await phase.open_loop([PreparedRequest(0.05, b"", 0)])
            await phase.wait_until_done()
        (record,) = phase.records
        assert record.due == 0.05 and record.sent >= 0.2
        assert (record.outcome, record.why) == (Outcome.CONNECTION_LOST, "slow")

    run(main())


def test_a_closed_loop_has_so_many_open_and_ends_by_count_or_time() -> None:
    async def main() -> None:
        slow = Slow(0.01)
        async with phase_over(slow) as phase:
            await phase.closed_loop(repeat(SHOT), 3, 60.0, 7)
        assert slow.most == 3 and len(phase.records) == 7
        assert all(record.due <= record.sent for record in phase.records)
        async with phase_over(slow) as phase:
            await phase.closed_loop(repeat(SHOT), 2, 0.3, None)
            assert phase.records and phase.now >= 0.3

    run(main())


def test_a_closed_loop_does_not_storm_a_server_that_is_gone() -> None:
    async def main() -> None:
        async with phase_over(Slow(0.0)) as phase:
            await phase.closed_loop(repeat(SHOT), 1, 0.35, None)
        assert 1 <= len(phase.records) <= 4

    run(main())


def test_what_is_ended_early_is_interrupted() -> None:
    async def main() -> None:
        slow = Slow(60.0)
        async with phase_over(slow) as phase:
            await phase.open_loop([SHOT, SHOT])
            await asyncio.sleep(0.05)
            assert slow.open == 2
        assert slow.open == 0
        assert [record.outcome for record in phase.records] == [Outcome.INTERRUPTED] * 2

    run(main())


def test_a_mistake_of_our_own_is_raised() -> None:
    def broken() -> Iterator[PreparedRequest]:
        yield SHOT
        raise RuntimeError("no more")

    class Broken:
        async def send(self, request: bytes, taker: ResponseHandler, seconds: float) -> ExchangeEnd:
            raise RuntimeError("a slip")

    async def main() -> None:
        async with phase_over(Slow(0.0)) as phase:
            with pytest.raises(RuntimeError, match="no more"):
                await phase.closed_loop(broken(), 1, 5.0, None)
        async with phase_over(Broken()) as phase:
            await phase.open_loop([SHOT])
            with pytest.raises(RuntimeError, match="a slip"):
                await phase.wait_until_done()

    run(main())


def test_the_generator_knows_how_late_it_reads() -> None:
    async def main() -> None:
        async with phase_over(Slow(0.0)) as phase:
            await asyncio.sleep(0.1)
            time.sleep(0.3)  # what must not happen, and must be seen
            await asyncio.sleep(0.05)
        assert max(phase.loop_lags) > 0.2 and phase.cpu_share >= 0

    run(main())


def test_a_slow_first_byte_is_counted_from_when_the_request_was_due() -> None:
    async def slow(seen: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.2)
        writer.write(stream_response(1, 2))

    record, _ = run(once(slow))
    assert record.outcome is Outcome.OK and record.ttft is not None and record.ttft >= 0.2
    assert record.output_tokens == 2 and record.prompt_tokens == 3


@for_each(("response", "outcome", "code"), [
    (HEAD + chunk(event(text_chunk("x", 1))), Outcome.CONNECTION_LOST, "cut"),
    (HEAD + chunk(event(text_chunk("x", 1))) + chunk(b'event: error\ndata: {"error":{"code":"engine_dead"}}\n\n'),
     Outcome.ERROR_EVENT, "engine_dead"),
    (plain_response(429, {"error": {"code": "overloaded"}}, "retry-after: 2"), Outcome.REFUSED, "overloaded"),
    (plain_response(200, {"choices": []}), Outcome.UNFINISHED, "unfinished"),
    (plain_response(200, b"x", "content-encoding: gzip"), Outcome.INVALID_RESPONSE, "garbage"),
    (b"what?\r\n\r\n", Outcome.INVALID_RESPONSE, "garbage"),
    (HEAD + chunk(b"data: " + b"x" * 17 * 2**20), Outcome.INVALID_RESPONSE, "garbage"),
])  # fmt: skip
def test_every_fault_has_its_name(response: bytes, outcome: Outcome, code: str) -> None:
    record, server = run(once(respond_with(response, closes=True)))
    assert (record.outcome, record.code) == (outcome, code)
    assert record.retry_after == (2.0 if outcome is Outcome.REFUSED else None)
    assert server.requests[0].headers["accept-encoding"] == "identity"


def test_a_response_in_single_bytes_is_the_same() -> None:
    async def by_bytes(seen: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        for byte in stream_response(1, 2, 3):
            writer.write(bytes([byte]))
            await asyncio.sleep(0)

    record, _ = run(once(by_bytes))
    assert record.outcome is Outcome.OK and list(record.weights) == [1, 1, 1] and not record.is_miscounted


def test_a_server_that_never_responds_times_out() -> None:
    async def never(seen: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.5)

    record, _ = run(once(never, 0.1))
    assert record.outcome is Outcome.TIMEOUT and record.status == 0


@pytest.mark.full
def test_hundreds_of_streams_are_open_at_once() -> None:
    count = 400

    async def main() -> list[HttpRequestRecord]:
        all_here = asyncio.Event()

        async def together(seen: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
            writer.write(HEAD + chunk(event(text_chunk("x", 1))))
            if len(server.requests) == count:
                all_here.set()
            await all_here.wait()
            writer.write(stream_response(1).removeprefix(HEAD))

        async with scripted_server(together) as server:
            client = Client(Address.of(server.url))
            deck = PreparedRequests(WorkloadSpec(name="uniform"), 128, RequestFormat(model="m"), client)
            async with phase_over(client) as phase:
                await phase.open_loop(PreparedRequest(0.0, shot.request, 0) for shot in islice(deck, count))
                await phase.wait_until_done()
            client.close()
        assert server.num_connections == count
        return phase.records

    records = in_own_loop(main)
    assert {record.outcome for record in records} == {Outcome.OK} and len(records) == count
    assert {tuple(record.weights) for record in records} == {(1, 1)}


def test_what_a_real_replica_counted_is_what_came() -> None:
    config = FakeConfig(vocab_size=128, max_model_len=512, num_blocks=2048, verify=False)

    async def main(url: str) -> list[HttpRequestRecord]:
        client = Client(Address.of(url))
        deck = PreparedRequests(WorkloadSpec(name="uniform"), 128, RequestFormat(model="fake"), client)
        async with phase_over(client) as phase:
            await phase.open_loop(islice(deck, 200))
            await phase.wait_until_done()
        client.close()
        return phase.records

    with fake_server(config) as server:
        records = in_own_loop(lambda: main(server.url))
        assert server.metric("output_tokens_total") == 200 * 44
    assert [record.why for record in records if record.outcome is not Outcome.OK] == []
    assert {record.output_tokens for record in records} == {44}
    assert not any(record.is_miscounted for record in records)


def test_garbage_is_seldom_looked_for_meanwhile() -> None:
    async def main() -> tuple[int, int, int]:
        return gc.get_threshold()

    before = gc.get_threshold()
    assert in_own_loop(main) == GC_THRESHOLDS != before
    assert gc.get_threshold() == before

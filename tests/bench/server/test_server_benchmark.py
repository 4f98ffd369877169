"""ServerBenchmark: phases of load on a real replica and on scripted servers, and partial results."""

import asyncio

import pytest

from chairlift.bench.server.api_requests import PreparedRequests, RequestFormat
from chairlift.bench.server.benchmark_plan import BenchmarkPlan
from chairlift.bench.server.http_client import Client, NoResponse
from chairlift.bench.server.server_address import Address
from chairlift.bench.server.server_benchmark import ServerBenchmark, first_model
from support_scripted_server import ReceivedRequest, plain_response, respond_with, scripted_server, stream_response
from support_server import fake_server, run
from support_server_benchmark import UNIFORM, made


def test_a_server_that_does_not_serve_this_says_why() -> None:
    async def main(url: str) -> None:
        client = Client(Address.of(url))
        assert await first_model(client) == "fake"
        serving = ServerBenchmark(
            BenchmarkPlan(), client, PreparedRequests(UNIFORM, 128, RequestFormat(model="other"), client), print
        )
        with pytest.raises(
            NoResponse,
            match=r"cannot serve the requests of this benchmark: the model 'other' is not served here.*\(404\)",
        ):
            await serving.check_reachable()
        client.close()

    with fake_server() as server:
        run(main(server.url))


@pytest.mark.parametrize(("answer", "said"), [
    (plain_response(401, {"error": {"message": "no key"}}), r"does not list its models: no key \(401\)"),
    (plain_response(200, {"data": []}), "names no model"), (plain_response(200, b"<html>"), "names no model"),
])  # fmt: skip
def test_a_server_that_names_no_model(answer: bytes, said: str) -> None:
    async def main() -> None:
        async with scripted_server(respond_with(answer)) as server:
            with pytest.raises(NoResponse, match=said):
                await first_model(Client(Address.of(server.url)))

    run(main())


def test_cancelled_it_keeps_what_was_measured() -> None:
    async def hanging(seen: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        if len(server_saw) < 4 or seen.path == "/metrics":
            writer.write(stream_response(1))
        else:
            await asyncio.sleep(3600)
        server_saw.append(seen)

    server_saw: list[ReceivedRequest] = []

    async def main() -> ServerBenchmark:
        async with scripted_server(hanging) as server:
            client = Client(Address.of(server.url))
            serving = made(client, BenchmarkPlan(rate=(100.0, 100.0), requests=3, pause=0.0))
            running = asyncio.create_task(serving.run())
            while len(server.requests) < 8:
                await asyncio.sleep(0.01)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            client.close()
            return serving

    serving = run(main())
    assert [phase["complete"] for phase in serving.phases] in ([False], [True, False])
    last = serving.phases[-1]["requests"]
    assert last["interrupted"] >= 1 and last["failed"] == 0 and serving.overload() is None

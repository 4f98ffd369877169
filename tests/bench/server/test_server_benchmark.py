"""ServerBenchmark: phases of load on a real replica and on scripted servers, and partial results."""

import asyncio

import pytest

from chairlift.bench.offline.run_spec import WorkloadSpec
from chairlift.bench.server.api_requests import PreparedRequests, RequestFormat
from chairlift.bench.server.benchmark_plan import BenchmarkPlan
from chairlift.bench.server.http_client import Client, NoResponse
from chairlift.bench.server.server_address import Address
from chairlift.bench.server.server_benchmark import ServerBenchmark, first_model
from chairlift.engine.runner.fake_model import FakeConfig
from support_scripted_server import (
    ReceivedRequest,
    Script,
    plain_response,
    respond_with,
    scripted_server,
    stream_response,
)
from support_server import fake_server, run

UNIFORM = WorkloadSpec(name="uniform")
FAKE = FakeConfig(vocab_size=128, max_model_len=512, num_blocks=2048, verify=False)


async def measured(
    url: str, plan: BenchmarkPlan, spec: WorkloadSpec = UNIFORM, said: list[str] | None = None
) -> ServerBenchmark:
    client = Client(Address.of(url))
    serving = made(client, plan, spec, said)
    try:
        await serving.check_reachable()
        await serving.run()
    finally:
        client.close()
    return serving


def made(
    client: Client, plan: BenchmarkPlan, spec: WorkloadSpec = UNIFORM, said: list[str] | None = None
) -> ServerBenchmark:
    style = RequestFormat(model="fake")
    return ServerBenchmark(
        plan, client, PreparedRequests(spec, 128, style, client), [].append if said is None else said.append
    )


async def against(script: Script, plan: BenchmarkPlan) -> ServerBenchmark:
    async with scripted_server(script) as server:
        return await measured(server.url, plan)


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

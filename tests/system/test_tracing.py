"""Real processes: one trace leads from a router through the replica that is killed and the one that goes on."""

import asyncio
import json

import httpx
import pytest

from chairlift.engine.runner.fake_model import FakeConfig
from support_router_process import router_server
from support_server import CHAT, HELLO, fake_server, run
from support_tracing import Collector, grpc_collector, http_collector

ENGINE = FakeConfig(vocab_size=128, max_model_len=512, num_blocks=512, seconds_per_step=0.004)
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
STREAM = {**HELLO, "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 200, "seed": 7}
SERVER = "POST /v1/chat/completions"


def environ_of(collector: Collector, protocol: str, ratio: str) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_BSP_SCHEDULE_DELAY": "20", "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": ratio,
    }  # fmt: skip


def test_a_trace_of_three_processes_survives_the_end_of_one_of_them() -> None:
    with grpc_collector() as collector, http_collector() as routers:
        environ = environ_of(collector, "grpc", "0")
        with (
            fake_server(ENGINE, environ=environ) as one, fake_server(ENGINE, environ=environ) as two,
            router_server(
                one, two, options=("--otlp-endpoint", routers.url, "--trace-sample-ratio", "0"),
            ) as router,
        ):  # fmt: skip

            async def scenario() -> tuple[httpx.Response, bytes]:
                async with httpx.AsyncClient(base_url=router.url, timeout=30) as http:
                    plain = await http.post(CHAT, json=HELLO)
                    parent = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
                    async with http.stream("POST", CHAT, json=STREAM, headers=parent) as response:
                        assert response.headers["x-trace-id"] == TRACE
                        pieces = response.aiter_bytes()
                        received = await anext(pieces)
                        url = response.headers["x-chairlift-replica"]
                        (one if url == one.url else two).process.kill()
                        received += b"".join([piece async for piece in pieces])
                    return plain, received

            plain, received = asyncio.run(asyncio.wait_for(scenario(), 60))
            assert "x-trace-id" not in plain.headers and received.endswith(b"[DONE]\n\n")
            chunks = [json.loads(line[6:]) for line in received.splitlines() if line.startswith(b"data: {")]
            num_tokens = chunks[-1]["usage"]["completion_tokens"]
            collector.wait_for(SERVER)
            for each in (router, one, two):
                each.stop()
    request, (lost, last) = routers.of(SERVER), routers.all("chat fake")
    assert {span.trace_id for span in (*collector.spans, *routers.spans)} == {TRACE} and num_tokens == 200
    assert (request.parent_id, request.service) == (SPAN, "chairlift-router")
    assert request.event_names == ["first_token", "resumed"]
    assert lost.parent_id == last.parent_id == request.span_id
    assert lost.attributes["error.type"] in ("reset", "eof") and last.attributes["chairlift.attempt.resumed"]
    server = collector.of(SERVER, "chairlift-server")
    assert server.parent_id == last.span_id and server.event_names == ["resumed", "scheduled", "first_token"]
    children = [span.name for name in ("tokenize", "queue", "prefill", "decode") for span in collector.all(name)]
    assert children == ["tokenize", "queue", "prefill", "decode"]
    slack = 2_000_000_000  # clocks of two processes, and pauses of a busy machine
    assert last.start - slack < server.start < server.end < last.end + slack


@pytest.mark.full
def test_a_collector_that_is_down_costs_one_warning_and_no_request() -> None:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_BSP_SCHEDULE_DELAY": "5",
               "OTEL_EXPORTER_OTLP_TIMEOUT": "0.1"}  # fmt: skip
    with fake_server(environ=environ) as server:

        async def scenario() -> None:
            async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
                for _ in range(5):
                    assert (await http.post(CHAT, json=HELLO)).headers["x-trace-id"]
                while "cannot be exported" not in server.log:
                    await asyncio.sleep(0.01)

        run(scenario())
        assert server.stop() == 0
    assert server.log.count("cannot be exported") == 1, server.log
    assert "Traceback" not in server.log and server.log.count("spans were not exported") == 1

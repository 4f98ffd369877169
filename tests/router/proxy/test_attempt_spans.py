"""AttemptSpans: the span tree of a request through a router and its replicas, as a collector receives it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import httpx
import pytest

from chairlift.router.attempts.hedging import HedgeConfig
from chairlift.router.endpoint import Endpoint, ReplicaKind
from support_request_proxy import know_weights, token_stream
from support_router import (
    CHAT,
    HELLO,
    Connection,
    ReceivedRequest,
    RunningRouter,
    Script,
    ScriptedReplica,
    running_router,
    scripted,
)
from support_router_app import served_replica
from support_server import MODEL, run
from support_tracing import Collector, ReceivedSpan, http_collector, tracer_to

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
STREAM = {**HELLO, "stream": True}
ROUTER = "router: POST /v1/chat/completions"
CHAIRLIFT = ReplicaKind.CHAIRLIFT
GENERATION: list[Any] = [
    ("replica: tokenize", []),
    ("replica: queue", []),
    ("replica: prefill", []),
    ("replica: decode", []),
]


@dataclass
class TracedRouter:
    """A traced router with its replicas and its collector, which has all spans when the router is closed."""

    running: RunningRouter
    replicas: list[ScriptedReplica]
    http: httpx.AsyncClient

    async def post(self, body: Any = HELLO, path: str = CHAT, **headers: str) -> httpx.Response:
        return await self.http.post(path, json=body, headers=headers)


@asynccontextmanager
async def traced(
    collector: Collector, *scripts: Script, ratio: float = 1.0, **options: Any
) -> AsyncIterator[TracedRouter]:
    """Run a router over scripted replicas, whose spans the collector gets."""
    tracer = tracer_to(collector, "router", ratio=ratio)
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(scripted(script)) for script in scripts]
        running = await stack.enter_async_context(
            running_router([each.url for each in replicas], tracer=tracer, **options)
        )
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=running.url, timeout=10))
        yield TracedRouter(running, replicas, http)
    await asyncio.to_thread(tracer.close)


@asynccontextmanager
async def traced_fleet(collector: Collector, ratio: float = 1.0) -> AsyncIterator[httpx.AsyncClient]:
    """Run a router over a real replica with a fake engine, and yield a client."""
    replica_tracer, router_tracer = (
        tracer_to(collector, "replica", ratio=1.0),
        tracer_to(collector, "router", ratio=ratio),
    )
    async with (
        served_replica(tracer=replica_tracer) as url,
        running_router([url], kind=CHAIRLIFT, models=(MODEL,), tracer=router_tracer) as running,
        httpx.AsyncClient(base_url=running.url, timeout=10) as http,
    ):
        yield http
    for tracer in (replica_tracer, router_tracer):
        await asyncio.to_thread(tracer.close)


async def whole(connection: Connection, request: ReceivedRequest) -> None:
    await connection.respond({"answer": 1})


async def fail(connection: Connection, request: ReceivedRequest) -> None:
    await connection.respond({"error": {"message": "broken"}}, 500)


async def invalid(connection: Connection, request: ReceivedRequest) -> None:
    await connection.respond({"error": {"message": "bad", "code": "x"}}, 422)


async def reset(connection: Connection) -> None:
    connection.reset()


def attempts(collector: Collector) -> list[ReceivedSpan]:
    return sorted(
        (s for s in collector.spans if s.kind == "CLIENT"), key=lambda span: span.attributes["chairlift.attempt.number"]
    )


def facts(span: ReceivedSpan, *names: str) -> tuple[Any, ...]:
    return tuple(span.attributes.get(f"chairlift.attempt.{name}") for name in names)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_one_trace_leads_from_the_clients_span_through_router_and_replica(stream: bool) -> None:
    async def scenario() -> httpx.Response:
        async with traced_fleet(collector) as http:
            return await http.post(CHAT, headers={"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "a=1"}, json={
                **HELLO, "model": MODEL, "stream": stream, "max_tokens": 4, "seed": 3, "temperature": 0.5,
            })  # fmt: skip

    with http_collector() as collector:
        response = run(scenario())
    assert response.status_code == 200 and response.headers.get_list("x-trace-id") == [TRACE]
    replica = ("replica: POST /v1/chat/completions", GENERATION)
    assert collector.tree() == (ROUTER, [("router: chat fake", [replica])])
    assert {span.trace_id for span in collector.spans} == {TRACE} and {s.trace_state for s in collector.spans} == {
        "a=1"
    }
    router, server = collector.all("POST /v1/chat/completions")
    attempt = collector.of("chat fake")
    assert (router.parent_id, router.kind, attempt.kind, server.kind) == (SPAN, "SERVER", "CLIENT", "SERVER")
    assert attempt.attributes["server.port"] > 0 and attempt.attributes["gen_ai.request.model"] == MODEL
    assert attempt.attributes["http.response.status_code"] == 200
    assert attempt.event_names == (["first_token"] if stream else []), "a whole response has no first token"
    assert facts(attempt, "number", "purpose", "resumed", "outcome") == (1, "first", False, "complete")
    assert server.attributes | {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "chairlift", "gen_ai.request.model": MODEL,
        "gen_ai.response.model": MODEL, "gen_ai.request.max_tokens": 4, "gen_ai.request.seed": 3,
        "gen_ai.request.temperature": 0.5, "gen_ai.usage.output_tokens": 4,
        "gen_ai.response.finish_reasons": ["length"], "chairlift.outcome": "length",
        "http.response.status_code": 200, "http.route": CHAT,
    } == server.attributes  # fmt: skip
    assert server.attributes["gen_ai.usage.input_tokens"] > 0 and server.event_names == ["scheduled", "first_token"]
    assert not any("Hello" in str(span) for span in collector.spans), "prompts are never exported"


def test_the_times_of_the_engine_lie_within_the_replicas_span_in_their_order() -> None:
    async def scenario() -> None:
        async with traced_fleet(collector) as http:
            await http.post(CHAT, json={**STREAM, "model": MODEL, "max_tokens": 20})

    with http_collector() as collector:
        run(scenario())
    names = ("tokenize", "queue", "prefill", "decode")
    server, parts = collector.all("POST /v1/chat/completions", "replica")[0], [collector.of(name) for name in names]
    assert server.start <= parts[0].start and parts[-1].end <= server.end
    for before, after in pairwise(parts):
        assert before.end <= after.start + 1000 and before.start <= before.end  # rounded to nanoseconds, twice
    assert parts[1].end == parts[2].start and parts[2].end == parts[3].start
    assert server.event_times == (parts[2].start, parts[3].start)


@pytest.mark.full
def test_a_request_that_the_router_does_not_sample_is_not_traced_by_its_replica() -> None:
    async def scenario() -> httpx.Response:
        async with traced_fleet(collector, ratio=0.0) as http:
            return await http.post(CHAT, json={**HELLO, "model": MODEL})

    with http_collector() as collector:
        response = run(scenario())
    assert response.status_code == 200 and "x-trace-id" not in response.headers and collector.spans == []


def test_the_routers_latencies_are_exemplars_of_the_trace() -> None:
    async def scenario() -> tuple[str, str]:
        async with traced(collector, token_stream(10), kind=CHAIRLIFT) as router:
            know_weights(router.running, ("w",))
            trace_id = (await router.post(STREAM)).headers["x-trace-id"]
            accept = {"accept": "application/openmetrics-text"}
            return trace_id, (await router.http.get("/metrics", headers=accept)).text

    with http_collector() as collector:
        trace_id, page = run(scenario())
    lines = [line.partition("_bucket")[0] for line in page.splitlines() if f'trace_id="{trace_id}"' in line]
    assert lines == ["chairlift_time_to_first_token_seconds", "chairlift_e2e_request_latency_seconds"]


def test_a_request_that_waits_for_a_replica_has_a_span_of_that() -> None:
    async def scenario() -> None:
        tracer = tracer_to(collector, "router")
        async with (
            scripted(whole) as replica,
            running_router([], tracer=tracer, hold_timeout=20.0) as running,
            httpx.AsyncClient(base_url=running.url, timeout=30) as http,
        ):
            response = asyncio.create_task(http.post(CHAT, json=HELLO))
            while not running.router.hold.num_requests:
                await asyncio.sleep(0.001)
            endpoint = Endpoint(url=replica.url, kind=ReplicaKind.OPENAI, models=("m",))
            running.router.replicas.update([endpoint], running.router.clock.now())
            assert (await response).status_code == 200
        await asyncio.to_thread(tracer.close)

    with http_collector() as collector:
        run(scenario())
    assert collector.tree() == (ROUTER, [("router: hold", []), ("router: chat m", [])])


def test_quiet_routes_are_not_traced_and_others_that_pass_are() -> None:
    async def scenario() -> None:
        async with traced_fleet(collector) as http:
            for path in ("/livez", "/metrics", "/load", "/tokenizer_info"):
                await http.get(path)

    with http_collector() as collector:
        run(scenario())
    assert collector.tree() == ("router: GET", [("router: GET", [("replica: GET /tokenizer_info", [])])])


def test_an_error_of_the_replica_is_one_of_the_attempt_and_the_next_one_counts() -> None:
    async def scenario() -> httpx.Response:
        async with traced(collector, fail, whole) as router:
            response = await router.post()
            if response.headers["x-chairlift-attempts"] == "1":  # it began with the other replica
                collector.spans.clear()
                response = await router.post()
            return response

    with http_collector() as collector:
        response = run(scenario())
    assert response.status_code == 200
    first, second = attempts(collector)[-2:]
    assert first.is_error and first.attributes["error.type"] == "status"
    assert first.attributes["http.response.status_code"] == 500
    assert facts(first, "outcome") == ("failed",) and facts(second, "number", "purpose", "outcome") == (
        2,
        "retry",
        "complete",
    )
    assert second.attributes["http.request.resend_count"] == 1 and not second.is_error
    assert not any(span.is_error for span in collector.spans if span.kind == "SERVER")


@pytest.mark.parametrize(("script", "status", "is_error"), [(invalid, 422, False), (fail, 502, True)])
def test_a_failed_request_says_so_in_the_routers_span(script: Script, status: int, is_error: bool) -> None:
    async def scenario() -> httpx.Response:
        async with traced(collector, script) as router:
            return await router.post()

    with http_collector() as collector:
        response = run(scenario())
    server, attempt = collector.of("POST /v1/chat/completions"), collector.of("chat m")
    assert response.status_code == server.attributes["http.response.status_code"] == status
    assert response.headers["x-trace-id"] == server.trace_id
    assert server.is_error is is_error and attempt.is_error
    assert server.attributes.get("error.type") == ("replica_failed" if is_error else None)
    assert attempt.attributes["error.type"] == ("status" if is_error else "422")


def test_a_resumed_stream_has_an_attempt_for_each_replica() -> None:
    async def scenario() -> httpx.Response:
        scripts = token_stream(4, reset), token_stream(4, reset), token_stream(10)
        async with traced(collector, *scripts, kind=CHAIRLIFT) as router:
            know_weights(router.running, ("w", "w", "w"))
            return await router.post(STREAM)

    with http_collector() as collector:
        response = run(scenario())
    assert response.content.endswith(b"[DONE]\n\n")
    spans = attempts(collector)
    assert len(spans) > 1 or collector.of("chat m")
    first, *others = spans
    for lost in spans[:-1]:
        assert lost.attributes["error.type"] == "reset" and lost.event_names == ["first_token"]
    assert facts(first, "purpose", "resumed") == ("first", False)
    assert [facts(each, "purpose", "resumed") for each in others] == [("retry", True)] * len(others)
    assert facts(spans[-1], "outcome") == ("complete",)
    server = collector.of("POST /v1/chat/completions")
    assert server.event_names == ["first_token"] + ["resumed"] * len(others)
    assert [f[1]["replica"] for f in server.events[1:]] == [each.attributes["chairlift.replica"] for each in others]


def test_a_hedge_is_a_second_attempt_beside_the_first() -> None:
    calls: list[int] = []

    async def late_second(connection: Connection, request: ReceivedRequest) -> None:
        calls.append(1)
        if len(calls) == 2:
            await asyncio.Event().wait()
        await token_stream(10)(connection, request)

    async def scenario() -> None:
        hedging = HedgeConfig(min_samples=1, min_delay_seconds=0.001, max_share=1.0)
        async with traced(collector, late_second, late_second, kind=CHAIRLIFT, hedging=hedging) as router:
            know_weights(router.running)
            await router.post(STREAM)
            collector.wait_for("chat m")
            collector.spans.clear()
            assert (await router.post(STREAM)).content.endswith(b"[DONE]\n\n")

    with http_collector() as collector:
        run(scenario())
    late, hedge = attempts(collector)
    assert facts(late, "purpose", "outcome") == ("first", "cancelled") and not late.is_error
    assert facts(hedge, "purpose", "outcome") == ("hedge", "complete")
    server = collector.of("POST /v1/chat/completions")
    assert server.event_names == ["hedged", "first_token"]
    assert server.events[0][1] == {"replica": hedge.attributes["chairlift.replica"], "attempt": 2}


def test_a_stream_of_a_draining_replica_is_moved() -> None:
    async def hang(connection: Connection) -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        async with (
            traced(collector, token_stream(3, hang), kind=CHAIRLIFT) as router, scripted(token_stream(10)) as other
        ):  # fmt: skip
            running = router.running
            replicas = running.router.replicas
            know_weights(running, ("w",))
            async with router.http.stream("POST", CHAT, json=STREAM) as response:
                pieces = response.aiter_bytes()
                await anext(pieces)
                (old,) = replicas.endpoints.values()
                endpoints = [old, Endpoint(url=other.url, kind=CHAIRLIFT, models=("m",))]
                replicas.update(endpoints, running.router.clock.now())
                know_weights(running, ("w", "w"))
                running.router.drain_replica(old.url)
                assert b"".join([piece async for piece in pieces]).endswith(b"[DONE]\n\n")

    with http_collector() as collector:
        run(scenario())
    first, moved = attempts(collector)
    assert facts(first, "outcome") == ("cancelled",)
    assert facts(moved, "purpose", "resumed", "outcome") == ("handover", True, "complete")
    assert collector.of("POST /v1/chat/completions").event_names == ["first_token", "handed_over", "resumed"]


def test_a_cancelled_request_ends_its_attempt_and_is_no_error() -> None:
    async def scenario() -> None:
        started = asyncio.Event()

        async def hang(connection: Connection, request: ReceivedRequest) -> None:
            started.set()
            await asyncio.Event().wait()

        async with traced(collector, hang) as router:
            task = asyncio.create_task(router.post())
            await started.wait()
            task.cancel()
            while router.running.router.open_proxies:
                await asyncio.sleep(0.001)

    with http_collector() as collector:
        run(scenario())
    server, attempt = collector.of("POST /v1/chat/completions"), collector.of("chat m")
    assert not server.is_error and not attempt.is_error and facts(attempt, "outcome") == ("cancelled",)
    assert server.attributes["chairlift.outcome"] == "abort"
    assert "http.response.status_code" not in server.attributes


def test_a_replica_gets_the_context_of_its_attempt_and_no_other_one() -> None:
    async def scenario() -> list[ReceivedRequest]:
        async with traced(collector, whole) as router:
            await router.post(traceparent=f"00-{TRACE}-{SPAN}-01", tracestate="BAD")
            await router.post(traceparent="malformed", tracestate="a=1")
            return router.replicas[0].requests

    with http_collector() as collector:
        valid, malformed = run(scenario())
    first, second = collector.all("chat m")
    assert valid.headers["traceparent"] == f"00-{TRACE}-{first.span_id}-01" and "tracestate" not in valid.headers
    assert malformed.headers["traceparent"] == f"00-{second.trace_id}-{second.span_id}-01"
    assert second.trace_id != TRACE and "tracestate" not in malformed.headers


def test_without_tracing_the_clients_headers_pass_unchanged() -> None:
    async def scenario() -> None:
        async with scripted(whole) as replica, running_router([replica.url]) as router:
            async with httpx.AsyncClient(base_url=router.url) as http:
                response = await http.post(CHAT, json=HELLO, headers={"traceparent": "odd", "tracestate": "A B"})
            assert "x-trace-id" not in response.headers
            assert replica.requests[0].headers["traceparent"] == "odd"
            assert replica.requests[0].headers["tracestate"] == "A B"

    run(scenario())

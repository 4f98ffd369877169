"""GenerationSpans: the spans of a replica's request, from the engine's times and, without them, from the server's."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from chairlift.core.engine_output import Usage
from chairlift.core.request_timeline import Timeline, TimelineEvent
from chairlift.engine.step_plan import StepPlan
from chairlift.llm.text_event import TextEvent
from chairlift.observability.tracing.span import RequestTrace, Span, SpanIds, SpanKind
from chairlift.observability.tracing.trace_context import TraceContext
from chairlift.observability.tracing.tracer import SamplingConfig, Tracer
from chairlift.server.openai.completion_request import read_completion
from chairlift.server.openai.output.generation_spans import GenerationSpans
from chairlift.server.replica import Replica
from support_server import CHAT, COMPLETIONS, HELLO, MODEL, open_server, run
from support_services import Gate, fake_service
from support_tracing import TraceList

PROMPT = {"model": MODEL, "prompt": "hello", "max_tokens": 5, "seed": 1}
PROCESSOR: Any = SimpleNamespace(request=SimpleNamespace(resume=()), timeline=None)
ENGINE = ["queue", "prefill", "decode"]


def traced(body: dict[str, Any], path: str = COMPLETIONS) -> tuple[RequestTrace, httpx.Response]:
    """Return the trace of a request to a server over a fake engine, and its response."""
    sink = TraceList()

    async def scenario() -> httpx.Response:
        tracer = Tracer(SamplingConfig(), sink)
        async with open_server(fake_service(), tracer=tracer) as server:
            return await server.http.post(path, json=body)

    response = run(scenario())
    (trace,) = sink.traces
    return trace, response


def names(trace: RequestTrace) -> list[str]:
    return [span.name for span in trace.spans[1:]]


def reported(timeline: Timeline | None, first_after: float | None = 4.0) -> dict[str, tuple[float, float]]:
    """Return the spans of a request that got its first token after some seconds, and its end after 10 s.

    Times count from its submission; the end of the last span, when its last byte was sent, is not among them.
    """
    trace = RequestTrace(Span("a", SpanKind.SERVER, TraceContext("1" * 32, "2" * 16, 1), "", 0.0), SpanIds())
    spans = GenerationSpans(trace, COMPLETIONS, read_completion({"model": "m", "prompt": "x"}), [PROCESSOR])
    submitted_at = spans._submitted_at
    if first_after is not None:
        spans.take([(0, TextEvent("r", "a", (1,)))], submitted_at + first_after)
    spans.take([(0, TextEvent("r", usage=Usage(1, 1, 0), timeline=timeline))], submitted_at + 10.0)
    spans.end(Usage(1, 1, 0), "stop", None)
    found = {
        span.name: (span.started_at - submitted_at, (span.ended_at or 0) - submitted_at) for span in trace.spans[1:]
    }
    found |= {f"event {name}": (at - submitted_at, 0.0) for name, at, _ in trace.server.events}
    return {name: (round(start, 3), round(end, 3)) for name, (start, end) in found.items()}


def test_a_request_has_the_steps_of_its_way() -> None:
    trace, response = traced({**PROMPT, "n": 2, "top_p": 0.5, "presence_penalty": 1.0})
    assert response.status_code == 200 and names(trace) == ["tokenize", *ENGINE]
    attributes = trace.server.attributes
    assert trace.server.name == "POST /v1/completions" and attributes["gen_ai.operation.name"] == "text_completion"
    requested = {
        name.removeprefix("gen_ai.request."): value for name, value in attributes.items() if ".request." in name
    }
    assert requested == {
        "model": MODEL, "max_tokens": 5, "seed": 1, "top_p": 0.5, "presence_penalty": 1.0, "choice.count": 2,
        "http.request.method": "POST",
    }  # fmt: skip
    assert attributes["gen_ai.response.finish_reasons"] == ("length", "length")
    assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (5, 10)
    assert attributes["gen_ai.usage.cache_read.input_tokens"] == 0


def test_each_prompt_has_spans_of_its_own() -> None:
    trace, _ = traced({**PROMPT, "prompt": ["a", "bc"]})
    indexes = [(span.name, span.attributes["chairlift.prompt.index"]) for span in trace.spans[2:]]
    assert indexes == [(name, index) for index in (0, 1) for name in ENGINE]


def test_a_resumed_request_says_how_many_tokens_were_delivered_before() -> None:
    trace, response = traced({**PROMPT, "resume": [[1, 2, 3]]})
    assert response.status_code == 200
    assert trace.server.events[0][0] == "resumed" and trace.server.events[0][2] == {"tokens": 3}


@pytest.mark.parametrize(("body", "status"), [({**PROMPT, "max_tokens": -2}, 400), ({**PROMPT, "model": "x"}, 404)])
def test_a_rejected_request_is_no_error_of_the_server(body: dict[str, Any], status: int) -> None:
    trace, response = traced(body)
    assert response.status_code == status == trace.server.attributes["http.response.status_code"]
    assert not trace.server.error_type and trace.server.attributes["chairlift.error.code"] and names(trace) == []
    assert response.headers["x-trace-id"] == trace.trace_id


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_of_the_engine_is_one_of_the_server_also_within_a_stream(stream: bool) -> None:
    sink, replicas = TraceList(), list[Replica]()

    def fail_behind_a_token(plan: StepPlan, stage: str) -> None:
        until = time.monotonic() + 20
        while stage == "launch" and plan.step_id > 1 and time.monotonic() < until:
            if replicas[0].telemetry.num_output_tokens:
                raise RuntimeError("broken")
            time.sleep(0.001)

    async def scenario() -> httpx.Response:
        service = fake_service(hook=fail_behind_a_token)
        async with open_server(service, tracer=Tracer(SamplingConfig(), sink)) as server:
            replicas.append(server.replica)
            return await server.http.post(COMPLETIONS, json={**PROMPT, "stream": stream})

    response = run(scenario())
    (trace,) = sink.traces
    assert response.status_code == (200 if stream else 500)
    assert trace.server.error_type == trace.server.attributes["chairlift.outcome"] == "forward_failed"
    assert names(trace) == ["tokenize", *ENGINE]


@pytest.mark.parametrize("has_token", [False, True])
def test_a_request_whose_client_leaves_is_no_error(has_token: bool) -> None:
    sink, gate = TraceList(), Gate(after=2 if has_token else 0)

    async def scenario() -> None:
        async with open_server(fake_service(hook=gate), tracer=Tracer(SamplingConfig(), sink)) as server:
            task = asyncio.create_task(server.http.post(CHAT, json={**HELLO, "stream": True}))
            await asyncio.to_thread(gate.reached.wait, 20)
            while has_token and not server.replica.telemetry.num_output_tokens:
                await asyncio.sleep(0.001)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            gate.opened.set()

    run(scenario())
    (trace,) = sink.traces
    assert names(trace) == ["tokenize", *(ENGINE if has_token else ["queue and prefill"])]
    assert trace.server.attributes["chairlift.outcome"] == "abort" and not trace.server.error_type


def test_a_response_that_a_stop_string_ends_has_the_engines_times() -> None:
    text = traced({**PROMPT, "max_tokens": 40})[1].json()["choices"][0]["text"]
    trace, response = traced({**PROMPT, "max_tokens": 40, "stop": [text[3:5]]})
    assert response.json()["choices"][0]["finish_reason"] == "stop" and names(trace) == ["tokenize", *ENGINE]


def test_the_latencies_of_a_traced_request_are_exemplars_of_its_trace() -> None:
    sink = TraceList()

    async def scenario() -> str:
        async with open_server(fake_service(), tracer=Tracer(SamplingConfig(), sink)) as server:
            await server.http.post(CHAT, json={**HELLO, "stream": True})
            response = await server.http.get(
                "/metrics", headers={"accept": "application/openmetrics-text;version=1.0.0"}
            )
            assert response.headers["content-type"].startswith("application/openmetrics-text")
            assert "trace_id" not in (await server.http.get("/metrics")).text
            return response.text

    page = run(scenario())
    lines = [line for line in page.splitlines() if f'# {{trace_id="{sink.traces[0].trace_id}"}}' in line]
    between_pieces = {"chairlift_inter_token_latency_seconds"}  # only where the stream came in several pieces
    assert {line.partition("_bucket")[0] for line in lines} - between_pieces == {
        "chairlift_time_to_first_token_seconds", "chairlift_e2e_request_latency_seconds",
        "chairlift_request_queue_time_seconds",
    }  # fmt: skip


def timeline_of(*events: tuple[str, float], waits: tuple[tuple[str, float], ...] = ()) -> Timeline:
    return Timeline(tuple(TimelineEvent(name, at) for name, at in (("queued", 0.0), *events)), waits)


def test_the_engines_times_begin_where_no_output_came_before_its_time() -> None:
    """The last output came 10 s after the submission, the first one 4 s after it: the engine queued it 1.5 s after."""
    spans = reported(timeline_of(("scheduled", 1.0), ("first_token", 2.5), ("finished", 8.0)))
    assert spans["queue"] == (1.5, 2.5) and spans["prefill"] == (2.5, 4.0) and spans["decode"][0] == 4.0
    assert spans["event scheduled"][0] == 2.5 and spans["event first_token"][0] == 4.0


def test_the_engines_times_never_begin_before_the_submission() -> None:
    spans = reported(timeline_of(("scheduled", 1.0), ("first_token", 9.0), ("finished", 12.0)))
    assert spans["queue"] == (0.0, 1.0) and spans["prefill"] == (1.0, 9.0)


def test_a_preemption_is_an_event_of_the_request() -> None:
    spans = reported(timeline_of(
        ("scheduled", 0.0), ("first_token", 1.0), ("preempted", 2.0), ("finished", 10.0)
    ))  # fmt: skip
    assert spans["event preempted"][0] == 2.0


def test_a_request_that_never_ran_has_waited_only() -> None:
    spans = reported(timeline_of(("finished", 10.0)), first_after=None)
    assert spans == {"queue": (0.0, 10.0)}


def test_a_timeline_without_events_is_as_none() -> None:
    assert reported(Timeline(())).keys() == reported(None).keys()


def test_a_request_that_failed_before_its_first_token_has_no_decode() -> None:
    spans = reported(timeline_of(("scheduled", 4.0), ("finished", 10.0)), first_after=None)
    assert spans == {"queue": (0.0, 4.0), "prefill": (4.0, 10.0), "event scheduled": (4.0, 0.0)}


def test_without_the_engines_times_the_first_token_divides_the_servers_own() -> None:
    spans = reported(None)
    assert spans["queue and prefill"] == (0.0, 4.0) and spans["decode"][0] == spans["event first_token"][0] == 4.0


def test_the_queue_says_why_the_request_waited() -> None:
    trace = RequestTrace(Span("a", SpanKind.SERVER, TraceContext("1" * 32, "2" * 16, 1), "", 0.0), SpanIds())
    spans = GenerationSpans(trace, COMPLETIONS, read_completion({"model": "m", "prompt": "x"}), [PROCESSOR])
    timeline = timeline_of(("scheduled", 2.0), ("finished", 3.0), waits=(("blocks", 1.5), ("policy", 0.5)))
    spans.take([(0, TextEvent("r", usage=Usage(1, 1, 0), timeline=timeline))], spans._submitted_at + 3.0)
    spans.end(Usage(1, 1, 0), "stop", None)
    assert trace.spans[1].attributes == {"chairlift.wait.blocks_seconds": 1.5, "chairlift.wait.policy_seconds": 0.5}

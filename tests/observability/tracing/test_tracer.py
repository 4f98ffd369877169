"""Tracer: the decision about each request, the headers that go on, and the span by the HTTP conventions."""

from random import Random
from typing import Any

import pytest

from chairlift.observability.logging import current_trace_id
from chairlift.observability.tracing.span import RequestTrace, SpanIds
from chairlift.observability.tracing.tracer import SamplingConfig, Tracer, span_within
from support_tracing import TraceList

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
OTHER = (b"x-other", b"1")


def make_tracer(ratio: float = 1.0, *, follows_parent: bool = True) -> tuple[Tracer, TraceList]:
    sink = TraceList()
    return Tracer(SamplingConfig(ratio=ratio, follows_parent=follows_parent), sink, SpanIds(Random(3))), sink


def scope_of(*headers: tuple[bytes, bytes], method: str = "POST", path: str = "/v1/completions") -> dict[str, Any]:
    return {"type": "http", "method": method, "path": path, "headers": [*headers, OTHER], "scheme": "http",
            "http_version": "1.1", "server": ("10.0.0.7", 8000)}  # fmt: skip


def parent(flags: str = "01") -> tuple[bytes, bytes]:
    return b"traceparent", f"00-{TRACE}-{SPAN}-{flags}".encode()


def start(tracer: Tracer, scope: dict[str, Any]) -> RequestTrace:
    trace = tracer.start_request(scope)
    assert trace is not None
    return trace


def test_a_request_without_a_parent_begins_a_trace() -> None:
    tracer, _ = make_tracer()
    scope = scope_of()
    trace = start(tracer, scope)
    assert trace.server.parent_id == "" and trace.server.attributes["server.address"] == "10.0.0.7"
    assert dict(scope["headers"]) == {b"x-other": b"1", b"traceparent": trace.server.context.traceparent.encode()}
    assert current_trace_id.get() == trace.trace_id


def test_a_sampled_parent_wins_over_the_ratio_and_its_state_goes_on() -> None:
    tracer, _ = make_tracer(0.0)
    scope = scope_of(parent(), (b"tracestate", b"a=1"), (b"tracestate", b"b=2"))
    trace = start(tracer, scope)
    assert (trace.trace_id, trace.server.parent_id) == (TRACE, SPAN)
    headers = dict(scope["headers"])
    assert headers[b"traceparent"] == f"00-{TRACE}-{trace.server.context.span_id}-01".encode()
    assert headers[b"tracestate"] == b"a=1,b=2" and len(scope["headers"]) == 3


def test_a_parent_that_is_not_sampled_wins_over_the_ratio_and_its_headers_go_on_unchanged() -> None:
    tracer, _ = make_tracer(1.0)
    scope = scope_of(parent("00"), (b"tracestate", b"a=1"))
    before = list(scope["headers"])
    assert tracer.start_request(scope) is None
    assert scope["headers"] == before


def test_an_invalid_state_of_a_parent_that_is_not_sampled_does_not_go_on() -> None:
    tracer, _ = make_tracer(1.0)
    scope = scope_of(parent("00"), (b"tracestate", b"BAD"))
    assert tracer.start_request(scope) is None
    assert dict(scope["headers"]).keys() == {b"x-other", b"traceparent"}


def test_without_following_parents_the_ratio_decides_and_the_decision_goes_on() -> None:
    tracer, _ = make_tracer(0.0, follows_parent=False)
    scope = scope_of(parent("03"))
    assert tracer.start_request(scope) is None
    version, trace_id, span_id, flags = dict(scope["headers"])[b"traceparent"].decode().split("-")
    assert (version, trace_id, flags) == ("00", TRACE, "02") and span_id != SPAN
    tracer, _ = make_tracer(1.0, follows_parent=False)
    assert start(tracer, scope_of(parent("00"))).server.parent_id == SPAN


@pytest.mark.parametrize("value", [b"", b"nonsense", f"00-{'0' * 32}-{SPAN}-01".encode()])
def test_a_malformed_parent_is_replaced_with_its_state(value: bytes) -> None:
    tracer, _ = make_tracer()
    scope = scope_of((b"traceparent", value), (b"tracestate", b"a=1"))
    trace = start(tracer, scope)
    assert trace.server.parent_id == "" and trace.server.context.state == ""
    assert dict(scope["headers"]).keys() == {b"x-other", b"traceparent"} and len(scope["headers"]) == 2


def test_a_request_that_is_not_sampled_says_so_to_further_servers() -> None:
    tracer, _ = make_tracer(0.0)
    scope = scope_of()
    assert tracer.start_request(scope) is None
    assert dict(scope["headers"])[b"traceparent"].endswith(b"-00")
    assert current_trace_id.get() == ""


def test_the_ratio_is_the_share_of_the_traces() -> None:
    tracer, _ = make_tracer(0.25)
    num_traced = sum(tracer.start_request(scope_of()) is not None for _ in range(2000))
    assert 400 < num_traced < 600


def test_the_span_has_the_names_of_the_http_conventions_and_nothing_of_the_query() -> None:
    tracer, sink = make_tracer()
    scope = scope_of((b"user-agent", b"curl/8"), path="/v1/models/a")
    trace = start(tracer, scope)
    child = trace.start("tokenize")
    tracer.end_request(trace, "/v1/models/{id}", 200, "")
    assert sink.traces == [trace] and trace.server.name == "POST /v1/models/{id}" and not trace.server.error_type
    assert child.ended_at is not None and trace.server.ended_at is not None and child.ended_at <= trace.server.ended_at
    assert trace.server.attributes == {
        "http.request.method": "POST", "url.path": "/v1/models/a", "url.scheme": "http",
        "user_agent.original": "curl/8",
        "network.protocol.version": "1.1", "server.address": "10.0.0.7", "server.port": 8000,
        "http.route": "/v1/models/{id}", "http.response.status_code": 200,
    }  # fmt: skip


@pytest.mark.parametrize(("status", "code", "error_type", "more"), [
    (503, "engine_dead", "engine_dead", {"http.response.status_code": 503, "chairlift.error.code": "engine_dead"}),
    (502, "", "502", {"http.response.status_code": 502}),
    (200, "internal_error", "internal_error", {"chairlift.error.code": "internal_error"}),  # cut behind its head
    (429, "overloaded", "", {"http.response.status_code": 429, "chairlift.error.code": "overloaded"}),
    (0, "client_gone", "", {"chairlift.outcome": "abort", "chairlift.error.code": "client_gone"}),
])  # fmt: skip
def test_only_a_servers_own_error_marks_the_span(status: int, code: str, error_type: str, more: dict[str, Any]) -> None:
    tracer, _ = make_tracer()
    trace = start(tracer, scope_of())
    tracer.end_request(trace, "/r", status, code)
    assert trace.server.error_type == error_type and trace.server.attributes.get("error.type", "") == error_type
    assert trace.server.attributes | more == trace.server.attributes


def test_an_unknown_method_and_route_have_no_name_that_a_client_decides() -> None:
    tracer, _ = make_tracer()
    trace = start(tracer, scope_of(method="BREW"))
    tracer.end_request(trace, "", 405, "method_not_allowed")
    assert trace.server.name == "HTTP" and trace.server.attributes["http.request.method"] == "_OTHER"


def test_a_context_is_a_span_of_a_sampled_request_and_nothing_else() -> None:
    tracer, _ = make_tracer()
    trace = start(tracer, scope_of())
    with pytest.raises(KeyError), span_within(trace, "tokenize"):
        raise KeyError
    assert [span.name for span in trace.spans] == ["HTTP", "tokenize"] and trace.spans[1].ended_at is not None
    with span_within(None, "tokenize") as span:
        assert span is None

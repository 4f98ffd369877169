"""Traces in tests: an OTLP collector in this process, by HTTP and gRPC, and tracers that send their spans to it."""

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2

from chairlift.observability.tracing.otlp_exporter import GRPC, HTTP, OTLPConfig, OTLPExporter
from chairlift.observability.tracing.span import RequestTrace
from chairlift.observability.tracing.span_queue import QueueLimits, SpanQueue
from chairlift.observability.tracing.tracer import SamplingConfig, Tracer

WAIT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """A span as the collector has received it."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    attributes: Mapping[str, Any]
    events: tuple[tuple[str, Mapping[str, Any]], ...]
    event_times: tuple[int, ...]
    is_error: bool
    service: str
    trace_state: str

    @property
    def event_names(self) -> list[str]:
        return [name for name, _ in self.events]


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _spans(request: trace_service_pb2.ExportTraceServiceRequest) -> Iterator[ReceivedSpan]:
    for resource_spans in request.resource_spans:
        service = _attributes(resource_spans.resource.attributes)["service.name"]
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                yield ReceivedSpan(
                    span.name, trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
                    span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(),
                    span.start_time_unix_nano, span.end_time_unix_nano, _attributes(span.attributes),
                    tuple((event.name, _attributes(event.attributes)) for event in span.events),
                    tuple(event.time_unix_nano for event in span.events),
                    span.status.code == trace_pb2.Status.STATUS_CODE_ERROR, service, span.trace_state,
                )  # fmt: skip


@dataclass
class Collector:
    """An OTLP collector.

    Attributes:
        url: its address.
        spans: what it has received.
        headers: headers or metadata of each export.
        status: HTTP status of its responses.
    """

    url: str = ""
    spans: list[ReceivedSpan] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    status: int = 200
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def receive(self, request: trace_service_pb2.ExportTraceServiceRequest, headers: dict[str, str]) -> None:
        with self._changed:
            self.headers.append(headers)
            if self.status == 200:
                self.spans += _spans(request)
            self._changed.notify_all()

    def wait_for(self, *names: str) -> None:
        """Wait until there is a span of each name."""
        with self._changed:
            found = self._changed.wait_for(
                lambda: set(names) <= {span.name for span in self.spans}, timeout=WAIT_SECONDS
            )
        assert found, f"{names} did not come, only {[span.name for span in self.spans]}"

    def trees(self) -> list[Any]:
        """Return the span tree of each trace, as (name, service, children), children by their start."""
        return [self._tree(span) for span in self.spans if not any(o.span_id == span.parent_id for o in self.spans)]

    def tree(self) -> Any:
        """Return the only tree."""
        (tree,) = self.trees()
        return tree

    def _tree(self, span: ReceivedSpan) -> Any:
        children = [other for other in self.spans if other.parent_id == span.span_id]
        children.sort(key=lambda child: (child.start, child.end))
        return (f"{span.service}: {span.name}", [self._tree(child) for child in children])

    def of(self, name: str, service: str = "") -> ReceivedSpan:
        """Return the only span of a name."""
        (span,) = self.all(name, service)
        return span

    def all(self, name: str, service: str = "") -> list[ReceivedSpan]:
        """Return the spans of a name by their start."""
        found = [span for span in self.spans if span.name == name and service in ("", span.service)]
        return sorted(found, key=lambda span: span.start)


@contextmanager
def http_collector() -> Iterator[Collector]:
    """Run a collector that speaks OTLP over HTTP."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the library's own name
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.path == "/v1/traces" and self.headers["content-type"] == "application/x-protobuf"
            request = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
            collector.receive(request, {name.lower(): value for name, value in self.headers.items()})
            self.send_response(collector.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join(WAIT_SECONDS)


@contextmanager
def grpc_collector() -> Iterator[Collector]:
    """Run a collector that speaks OTLP over gRPC."""
    collector = Collector()

    class Servicer(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802  # the library's own name
            collector.receive(request, {item.key: item.value for item in context.invocation_metadata()})
            return trace_service_pb2.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Servicer(), server)
    collector.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait(WAIT_SECONDS)


def tracer_to(
    collector: Collector, service: str, *, ratio: float = 1.0, follows_parent: bool = True, protocol: str = HTTP
) -> Tracer:
    """Return a tracer that exports to a collector; close() delivers its spans."""
    endpoint = collector.url if protocol == GRPC else f"{collector.url}/v1/traces"
    exporter = OTLPExporter(OTLPConfig(endpoint=endpoint, protocol=protocol, service_name=service), {})
    queue = SpanQueue(exporter, QueueLimits(delay_seconds=0.01))
    return Tracer(SamplingConfig(ratio=ratio, follows_parent=follows_parent), queue)


@dataclass
class TraceList:
    """A TraceSink that keeps the traces."""

    traces: list[RequestTrace] = field(default_factory=list)

    def add(self, trace: RequestTrace) -> None:
        self.traces.append(trace)

    def close(self) -> None: ...

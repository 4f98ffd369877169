"""OTLPExporter: sends spans by OTLP with OpenTelemetry's own exporters; no other module imports OpenTelemetry.

OpenTelemetry is the extra `otel`. Its exporters read the variables OTEL_EXPORTER_OTLP_* for what the configuration does
not name: certificates, compression, time limits, further headers.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chairlift.observability.tracing.span import RequestTrace, Span, SpanKind
from chairlift.observability.tracing.trace_context import TraceContext
from chairlift.observability.url_check_and_redaction import without_user_info

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

GRPC, HTTP = "grpc", "http/protobuf"
PROTOCOLS = (GRPC, HTTP)
LIBRARY_LOG = "opentelemetry"


class TracingUnavailable(Exception):
    """OpenTelemetry is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OTLPConfig:
    """Where spans are sent.

    Attributes:
        endpoint: URL of the collector; that of its traces for HTTP.
        protocol: GRPC or HTTP.
        headers: headers of each export, such as a key.
        version: version of the service.
        service_name: name of the service unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES has one.
    """

    endpoint: str
    protocol: str = HTTP
    headers: Mapping[str, str] = field(default_factory=dict)
    version: str = ""
    service_name: str = "chairlift"


class _LastMessage(logging.Handler):
    """Keeps the last message of OpenTelemetry's exporters, which else fill the log while a collector is down."""

    message = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.message = record.getMessage()


class OTLPExporter:
    """A SpanExporter.

    Attributes:
        target: the URL of the collector, for messages.
    """

    def __init__(self, config: OTLPConfig, environ: Mapping[str, str] | None = None) -> None:
        """Load OpenTelemetry and prepare the connection. Raises TracingUnavailable."""
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.util.instrumentation import InstrumentationScope

            self._exporter = _library_exporter(config)
        except ImportError as error:
            raise TracingUnavailable(f"tracing needs OpenTelemetry: pip install 'chairlift[otel]' ({error})") from None
        self.target = without_user_info(config.endpoint)
        self._resource = Resource.create(_resource_attributes(config, os.environ if environ is None else environ))
        self._scope = InstrumentationScope("chairlift", config.version)
        self._messages = _LastMessage(logging.WARNING)
        library_log = logging.getLogger(LIBRARY_LOG)
        library_log.propagate = False
        library_log.addHandler(self._messages)

    def export(self, traces: Sequence[RequestTrace]) -> str:
        """Send the spans of some traces, which may take seconds; return why that failed, "" if it did not."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        self._messages.message = ""
        spans = [self._readable(span, trace.epoch_offset_ns) for trace in traces for span in trace.spans]
        if self._exporter.export(spans) is SpanExportResult.SUCCESS:
            return ""
        return self._messages.message or "the collector has rejected them"

    def close(self) -> None:
        """Give up an export that is in progress."""
        self._exporter.shutdown()
        logging.getLogger(LIBRARY_LOG).removeHandler(self._messages)

    def _readable(self, span: Span, offset_ns: int) -> "ReadableSpan":
        """Return a span as OpenTelemetry's exporters take it."""
        from opentelemetry.sdk.trace import Event, ReadableSpan
        from opentelemetry.trace import Status, StatusCode

        def nanoseconds(at: float) -> int:
            return offset_ns + round(at * 1e9)

        parent = None
        if span.parent_id:
            own = span.context
            parent_context = TraceContext(own.trace_id, span.parent_id, own.flags, own.state)
            parent = _span_context(parent_context, is_remote=span.kind is SpanKind.SERVER)
        ended_at = span.started_at if span.ended_at is None else span.ended_at
        return ReadableSpan(
            span.name, context=_span_context(span.context), parent=parent, resource=self._resource,
            attributes=span.attributes, kind=_kind(span.kind), start_time=nanoseconds(span.started_at),
            end_time=nanoseconds(ended_at), instrumentation_scope=self._scope,
            events=[Event(event.name, event.attributes, nanoseconds(event.at)) for event in span.events],
            status=Status(StatusCode.ERROR, span.error_type) if span.error_type else Status(StatusCode.UNSET),
        )  # fmt: skip


def _library_exporter(config: OTLPConfig) -> Any:
    """Return OpenTelemetry's exporter. Raises ImportError."""
    if config.protocol == GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GRPCExporter

        headers = [(name.lower(), value) for name, value in config.headers.items()]
        return GRPCExporter(endpoint=config.endpoint, headers=headers or None)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HTTPExporter

    return HTTPExporter(endpoint=config.endpoint, headers=dict(config.headers) or None)


def _resource_attributes(config: OTLPConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes of this process; the variables of OpenTelemetry may name the service otherwise."""
    attributes = {"service.version": config.version, "service.instance.id": os.urandom(16).hex()}
    if not environ.get("OTEL_SERVICE_NAME") and "service.name=" not in environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        attributes["service.name"] = config.service_name
    return attributes


def _span_context(context: TraceContext, *, is_remote: bool = False) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags, TraceState

    return SpanContext(
        int(context.trace_id, 16), int(context.span_id, 16), is_remote, TraceFlags(context.flags),
        TraceState.from_header([context.state] if context.state else []),
    )  # fmt: skip


def _kind(kind: SpanKind) -> Any:
    from opentelemetry.trace import SpanKind as LibraryKind

    return LibraryKind[kind.name]

"""OTLPExporter: spans arrive by HTTP and gRPC; a collector that is down has its reason; no import without need."""

import json
import logging
import socket
import subprocess
import sys
from typing import Any

import pytest

from chairlift.observability.tracing.otlp_exporter import GRPC, HTTP, OTLPConfig, OTLPExporter, TracingUnavailable
from chairlift.observability.tracing.span import RequestTrace, Span, SpanIds, SpanKind
from chairlift.observability.tracing.trace_context import TraceContext
from support_tracing import grpc_collector, http_collector

TRACE, OWN, PARENT = "a" * 32, "b" * 16, "c" * 16


def make_trace() -> RequestTrace:
    server = Span("POST /x", SpanKind.SERVER, TraceContext(TRACE, OWN, 1, "k=v"), PARENT, 10.0, 12.5)
    trace = RequestTrace(server, SpanIds())
    server.attributes |= {"text": "t", "number": 3, "share": 0.5, "flag": True, "list": ("a", "b")}
    server.add_event("preempted", 11.0, {"block": 4})
    trace.add("decode", 11.0, 12.0)
    failed = trace.start("chat m", kind=SpanKind.CLIENT, at=10.5)
    failed.fail("reset")
    failed.end(10.75)
    return trace


@pytest.mark.parametrize(("collector", "protocol"), [(http_collector, HTTP), (grpc_collector, GRPC)])
def test_spans_arrive_with_everything_that_they_carry(collector: Any, protocol: str) -> None:
    with collector() as receiver:
        path = "/v1/traces" if protocol == HTTP else ""
        exporter = OTLPExporter(
            OTLPConfig(
                endpoint=receiver.url + path, protocol=protocol, headers={"X-Key": "secret"}, service_name="s"
            ), {},
        )  # fmt: skip
        trace = make_trace()
        assert exporter.export([trace]) == ""
        exporter.close()
    server, decode, failed = receiver.of("POST /x"), receiver.of("decode"), receiver.of("chat m")
    assert (server.kind, decode.kind, failed.kind) == ("SERVER", "INTERNAL", "CLIENT")
    assert (server.trace_id, server.span_id, server.parent_id, server.trace_state) == (TRACE, OWN, PARENT, "k=v")
    assert decode.parent_id == failed.parent_id == OWN and decode.trace_id == TRACE
    assert server.attributes == {"text": "t", "number": 3, "share": 0.5, "flag": True, "list": ["a", "b"]}
    assert server.events == (("preempted", {"block": 4}),)
    start = trace.epoch_offset_ns + 10_000_000_000
    assert (server.start, server.end, server.event_times) == (start, start + 2_500_000_000, (start + 10**9,))
    assert failed.is_error and failed.attributes == {"error.type": "reset"} and not server.is_error
    assert receiver.headers[0]["x-key"] == "secret" and server.service == "s"


@pytest.mark.parametrize("environ", [{"OTEL_SERVICE_NAME": "mine"}, {"OTEL_RESOURCE_ATTRIBUTES": "service.name=mine"}])
def test_the_variables_of_opentelemetry_may_name_the_service(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with http_collector() as receiver:
        exporter = OTLPExporter(OTLPConfig(endpoint=receiver.url + "/v1/traces", service_name="s"))
        assert exporter.export([make_trace()]) == ""
        exporter.close()
    assert receiver.of("decode").service == "mine"


def test_a_rejected_export_says_why_and_the_library_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with http_collector() as receiver:
        receiver.status = 401
        exporter = OTLPExporter(OTLPConfig(endpoint=receiver.url + "/v1/traces"), {})
        assert "401" in exporter.export([make_trace()])
        exporter.close()
    assert receiver.spans == [] and capfd.readouterr().err == ""


def test_an_unreachable_collector_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.05")
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    exporter = OTLPExporter(OTLPConfig(endpoint=f"http://127.0.0.1:{port}/v1/traces"), {})
    assert exporter.export([make_trace()]) != ""
    exporter.close()


WITHOUT = """
import json, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("opentelemetry", "grpc"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
from chairlift.cli.tracing_options import open_tracer
from chairlift.core.errors import ConfigError
import chairlift.router.app, chairlift.server.app

assert open_tracer({}, {}, "s") is None
assert open_tracer({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, "s") is None
try:
    open_tracer({"otlp_endpoint": "http://127.0.0.1:1"}, {}, "s")
except ConfigError as error:
    print(json.dumps([error.details["option"], error.message]))
"""


@pytest.mark.full
def test_without_opentelemetry_everything_runs_and_an_endpoint_is_an_error_that_names_the_extra() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    option, message = json.loads(done.stdout)
    assert option == "otlp_endpoint" and "pip install 'chairlift[otel]'" in message
    assert done.stderr.count("requests are not traced") == 1


def test_without_an_endpoint_nothing_of_opentelemetry_is_imported() -> None:
    code = (
        "import sys; from chairlift.cli.tracing_options import open_tracer; import chairlift.router.app, "
        "chairlift.server.app; assert open_tracer({}, {}, 's') is None; "
        "sys.exit(' '.join(name for name in sys.modules if name.partition('.')[0] in ('opentelemetry', 'grpc')) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_missing_package_is_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(TracingUnavailable, match="otel"):
        OTLPExporter(OTLPConfig(endpoint="http://127.0.0.1:1"), {})
    assert logging.getLogger("opentelemetry").level == logging.NOTSET

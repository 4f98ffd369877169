"""Tracing options: settings win over OpenTelemetry's variables, and each wrong value has its own error."""

import logging
from pathlib import Path
from typing import Any

import pytest

from chairlift.cli.tracing_options import open_tracer, otlp_config, queue_limits, sampling_config
from chairlift.core.errors import ConfigError
from chairlift.observability.tracing.otlp_exporter import GRPC, HTTP, OTLPConfig
from chairlift.observability.tracing.span_queue import QueueLimits
from chairlift.observability.tracing.tracer import SamplingConfig
from support_shares import for_each
from support_tracing import http_collector

BASE, TRACES = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"


def endpoint(options: dict[str, Any], **environ: str) -> OTLPConfig | None:
    return otlp_config(options, environ, "s")


@for_each(("options", "environ", "expected"), [
    ({"otlp_endpoint": "http://c:4318"}, {}, ("http://c:4318/v1/traces", HTTP)),
    ({"otlp_endpoint": "http://c:4318/"}, {}, ("http://c:4318/v1/traces", HTTP)),
    ({"otlp_endpoint": "https://c/otlp/v1/traces"}, {}, ("https://c/otlp/v1/traces", HTTP)),
    ({"otlp_endpoint": "http://c:4317", "otlp_protocol": "grpc"}, {}, ("http://c:4317", GRPC)),
    ({"otlp_endpoint": "http://c:4317"}, {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ("http://c:4317", GRPC)),
    ({"otlp_endpoint": "http://c", "otlp_protocol": "http/protobuf"}, {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
     ("http://c/v1/traces", HTTP)),
    ({}, {BASE: "http://e:4318"}, ("http://e:4318/v1/traces", HTTP)),
    ({}, {BASE: "http://e", TRACES: "http://t/own"}, ("http://t/own", HTTP)),
    ({"otlp_endpoint": "http://c"}, {TRACES: "http://t/own"}, ("http://c/v1/traces", HTTP)),
    ({}, {BASE: "http://e", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, ("http://e", GRPC)),
    ({}, {BASE: "http://e", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, ("http://e/v1/traces", HTTP)),
    ({"otlp_endpoint": "http://c"}, {"OTEL_SDK_DISABLED": "true"}, ("http://c/v1/traces", HTTP)),
])  # fmt: skip
def test_the_endpoint_and_its_protocol(
    options: dict[str, Any], environ: dict[str, str], expected: tuple[str, str]
) -> None:
    config = endpoint(options, **environ)
    assert config is not None and (config.endpoint, config.protocol) == expected and config.service_name == "s"


@pytest.mark.parametrize("environ", [
    {}, {BASE: ""}, {BASE: "http://e", "OTEL_SDK_DISABLED": "true"}, {BASE: "http://e", "OTEL_TRACES_EXPORTER": "none"},
    {BASE: "http://e", "OTEL_TRACES_EXPORTER": "zipkin"},
])  # fmt: skip
def test_without_an_endpoint_there_is_no_tracer(environ: dict[str, str]) -> None:
    assert endpoint({}, **environ) is None and open_tracer({}, environ, "s") is None


@for_each("url", ["collector:4318", "", "ftp://c", "http://", "http://c:99999", "http://c:0"])
def test_an_endpoint_that_is_no_url_is_an_error(url: str) -> None:
    with pytest.raises(ConfigError, match="otlp_endpoint must be a URL") as caught:
        endpoint({"otlp_endpoint": url})
    assert caught.value.details["option"] == "otlp_endpoint"


def test_a_password_in_the_endpoint_which_would_be_logged_is_an_error() -> None:
    with pytest.raises(ConfigError, match="must have no user name") as caught:
        endpoint({"otlp_endpoint": "http://me:secret@collector:4318"})
    assert "secret" not in str(caught.value)


def test_headers_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text("# key\n\nauthorization: Bearer a:b\nX-Org:  7 \n")
    config = endpoint({"otlp_endpoint": "http://c", "otlp_headers_file": str(file)})
    assert config is not None and config.headers == {"authorization": "Bearer a:b", "X-Org": "7"}


@pytest.mark.parametrize(("text", "message"), [("ok: 1\nsecret", "line 2 must be NAME: VALUE"), ("é: 1", "ASCII")])
def test_a_bad_file_of_headers_is_an_error_without_its_values(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "headers"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message) as caught:
        endpoint({"otlp_endpoint": "http://c", "otlp_headers_file": str(file)})
    assert "secret" not in caught.value.message
    with pytest.raises(ConfigError, match="No such file"):
        endpoint({"otlp_endpoint": "http://c", "otlp_headers_file": str(tmp_path / "none")})


@for_each(("options", "environ", "expected"), [
    ({}, {}, SamplingConfig(ratio=1.0)),
    ({"trace_sample_ratio": 0.1}, {"OTEL_TRACES_SAMPLER": "always_off"}, SamplingConfig(ratio=0.1)),
    ({}, {"OTEL_TRACES_SAMPLER": "always_off"}, SamplingConfig(ratio=0.0, follows_parent=False)),
    ({}, {"OTEL_TRACES_SAMPLER": "always_on"}, SamplingConfig(ratio=1.0, follows_parent=False)),
    ({}, {"OTEL_TRACES_SAMPLER": "parentbased_always_off"}, SamplingConfig(ratio=0.0)),
    ({}, {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"},
     SamplingConfig(ratio=0.25)),
    ({}, {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5"},
     SamplingConfig(ratio=0.5, follows_parent=False)),
])  # fmt: skip
def test_the_sampling(options: dict[str, Any], environ: dict[str, str], expected: SamplingConfig) -> None:
    assert sampling_config(options, environ) == expected


@pytest.mark.parametrize("environ", [
    {"OTEL_TRACES_SAMPLER": "jaeger_remote"}, {"OTEL_TRACES_SAMPLER_ARG": "2"}, {"OTEL_TRACES_SAMPLER_ARG": "x"},
])  # fmt: skip
def test_an_unknown_sampler_leaves_the_default_with_a_warning(
    environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "chairlift"):
        assert sampling_config({}, environ) == SamplingConfig()
    assert len(caplog.records) == 1


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_a_ratio_out_of_bounds_is_an_error(ratio: float) -> None:
    with pytest.raises(ConfigError, match="between 0 and 1") as caught:
        sampling_config({"trace_sample_ratio": ratio}, {})
    assert caught.value.details["option"] == "trace_sample_ratio"


def test_the_limits_of_the_queue_are_those_of_the_variables() -> None:
    assert queue_limits({}) == queue_limits({"OTEL_BSP_MAX_QUEUE_SIZE": "x", "OTEL_BSP_SCHEDULE_DELAY": "0"})
    environ = {
        "OTEL_BSP_MAX_QUEUE_SIZE": "100", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "200", "OTEL_BSP_SCHEDULE_DELAY": "250",
    }  # fmt: skip
    assert queue_limits(environ) == QueueLimits(max_spans=100, batch_spans=100, delay_seconds=0.25)


def test_an_opened_tracer_exports_to_the_endpoint() -> None:
    with http_collector() as collector:
        tracer = open_tracer({"otlp_endpoint": collector.url}, {}, "chairlift-test")
        assert tracer is not None
        scope: dict[str, Any] = {"method": "GET", "path": "/v1/models", "headers": []}
        trace = tracer.start_request(scope)
        assert trace is not None
        tracer.end_request(trace, "/v1/models", 200, "")
        tracer.close()
    assert collector.of("GET /v1/models").service == "chairlift-test"

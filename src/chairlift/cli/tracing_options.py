"""Tracing options: make the tracer of a process from its settings and OpenTelemetry's variables."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from chairlift import __version__
from chairlift.core.errors import ConfigError
from chairlift.observability.tracing.otlp_exporter import HTTP, PROTOCOLS, OTLPConfig, OTLPExporter, TracingUnavailable
from chairlift.observability.tracing.span_queue import QueueLimits, SpanQueue
from chairlift.observability.tracing.tracer import SamplingConfig, Tracer
from chairlift.observability.url_check_and_redaction import is_http_url

log = logging.getLogger(__name__)

TRACES_PATH = "/v1/traces"
ENDPOINT, TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"


def open_tracer(options: Mapping[str, Any], environ: Mapping[str, str], service_name: str) -> Tracer | None:
    """Return the tracer of a process with these settings; None unless an endpoint is named.

    Raises ConfigError for settings that are not valid, and for an endpoint without OpenTelemetry. An endpoint of
    OpenTelemetry's own variables, which other programs share, then costs a warning only.
    """
    sampling, limits = sampling_config(options, environ), queue_limits(environ)
    config = otlp_config(options, environ, service_name)
    if config is None:
        return None
    try:
        exporter = OTLPExporter(config, environ)
    except TracingUnavailable as error:
        if "otlp_endpoint" in options:
            raise ConfigError(str(error), option="otlp_endpoint") from None
        log.warning("requests are not traced: %s", error)
        return None
    return Tracer(sampling, SpanQueue(exporter, limits))


def otlp_config(options: Mapping[str, Any], environ: Mapping[str, str], service_name: str) -> OTLPConfig | None:
    """Return where spans are sent; None for nowhere. Raises ConfigError."""
    check_endpoint(options)
    variable = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    protocol = options.get("otlp_protocol") or (variable if variable in PROTOCOLS else HTTP)
    endpoint = options.get("otlp_endpoint") or _endpoint_of(environ)
    if not endpoint:
        return None
    is_base = "otlp_endpoint" in options or not environ.get(TRACES_ENDPOINT)
    if protocol == HTTP and is_base and not endpoint.rstrip("/").endswith(TRACES_PATH):
        endpoint = endpoint.rstrip("/") + TRACES_PATH
    headers = _headers_of(options.get("otlp_headers_file"))
    return OTLPConfig(
        endpoint=endpoint, protocol=protocol, headers=headers, version=__version__, service_name=service_name
    )


def check_endpoint(options: Mapping[str, Any]) -> None:
    """Raise ConfigError for an endpoint that is not a URL, and for settings of an endpoint that is not named."""
    endpoint = options.get("otlp_endpoint")
    if endpoint is None:
        return
    if not is_http_url(endpoint):
        raise ConfigError(
            f"otlp_endpoint must be a URL, as http://collector:4318, got {endpoint!r}", option="otlp_endpoint"
        )
    if urlsplit(endpoint).username is not None:
        raise ConfigError(
            "otlp_endpoint must have no user name; OTEL_EXPORTER_OTLP_HEADERS can have a key", option="otlp_endpoint"
        )


def _endpoint_of(environ: Mapping[str, str]) -> str:
    """Return the endpoint of OpenTelemetry's variables, "" if they name none or switch traces off."""
    is_disabled = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if is_disabled or environ.get("OTEL_TRACES_EXPORTER", "otlp").strip() not in ("", "otlp"):
        return ""
    return environ.get(TRACES_ENDPOINT) or environ.get(ENDPOINT, "")


def _headers_of(path: str | None) -> dict[str, str]:
    """Return the headers of a file with one NAME: VALUE per line. Raises ConfigError, which names no value."""
    if path is None:
        return {}
    try:
        lines = Path(path).read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no ASCII text"
        raise ConfigError(f"cannot read otlp_headers_file {path}: {reason}", option="otlp_headers_file") from None
    headers: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        name, colon, value = line.partition(":")
        if not line.strip() or line.startswith("#"):
            continue
        if not colon or not name.strip() or not value.strip():
            raise ConfigError(
                f"otlp_headers_file {path} line {number} must be NAME: VALUE", option="otlp_headers_file"
            )  # fmt: skip
        headers[name.strip()] = value.strip()
    return headers


def sampling_config(options: Mapping[str, Any], environ: Mapping[str, str]) -> SamplingConfig:
    """Return which requests are traced, by the setting, else by OTEL_TRACES_SAMPLER. Raises ConfigError."""
    ratio = options.get("trace_sample_ratio")
    if ratio is not None:
        if not 0 <= ratio <= 1:
            raise ConfigError(f"trace_sample_ratio must be between 0 and 1, got {ratio:g}", option="trace_sample_ratio")
        return SamplingConfig(ratio=ratio)
    sampler = environ.get("OTEL_TRACES_SAMPLER", "").strip() or "parentbased_always_on"
    follows_parent = sampler.startswith("parentbased_")
    kind = sampler.removeprefix("parentbased_")
    ratios = {"always_on": 1.0, "always_off": 0.0, "traceidratio": _ratio_of(environ.get("OTEL_TRACES_SAMPLER_ARG"))}
    if kind not in ratios:
        log.warning("OTEL_TRACES_SAMPLER %r is unknown; parentbased_always_on holds", sampler)
        return SamplingConfig()
    return SamplingConfig(ratio=ratios[kind], follows_parent=follows_parent)


def _ratio_of(text: str | None) -> float:
    try:
        ratio = float(text or 1)
    except ValueError:
        ratio = -1
    if 0 <= ratio <= 1:
        return ratio
    log.warning("OTEL_TRACES_SAMPLER_ARG must be between 0 and 1, got %r; 1 holds", text)
    return 1.0


def queue_limits(environ: Mapping[str, str]) -> QueueLimits:
    """Return the limits of the queue of spans by OpenTelemetry's variables OTEL_BSP_*."""
    default = QueueLimits()
    max_spans = _positive(environ, "OTEL_BSP_MAX_QUEUE_SIZE", default.max_spans)
    return QueueLimits(
        max_spans=max_spans,
        batch_spans=min(max_spans, _positive(environ, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", default.batch_spans)),
        delay_seconds=_positive(environ, "OTEL_BSP_SCHEDULE_DELAY", round(default.delay_seconds * 1000)) / 1000,
    )


def _positive(environ: Mapping[str, str], name: str, default: int) -> int:
    """Return the positive integer of a variable; a text that is none leaves the default, as in OpenTelemetry."""
    text = environ.get(name, "").strip()
    return int(text) if text.isdecimal() and int(text) > 0 else default

"""TRACING: the settings of OpenTelemetry traces, of servers, routers and fleets."""

from chairlift.cli.settings.declaration import Setting
from chairlift.cli.settings.value_parsers import number, one_of

TRACING = (
    Setting(name="otlp_endpoint", metavar="URL", default_text="OTEL_EXPORTER_OTLP_ENDPOINT, else no traces",
            help="send traces of requests to this collector, as http://collector:4318; needs chairlift[otel]"),
    Setting(name="otlp_protocol", parse=one_of("grpc", "http/protobuf"), metavar="NAME",
            default_text="OTEL_EXPORTER_OTLP_PROTOCOL, else http/protobuf",
            help="protocol of --otlp-endpoint: grpc, http/protobuf"),
    Setting(name="otlp_headers_file", metavar="FILE",
            help="file of headers for the collector, such as its key; one NAME: VALUE per line"),
    Setting(name="trace_sample_ratio", parse=number, metavar="X", default_text="OTEL_TRACES_SAMPLER, else 1",
            help="share of the requests that are traced, 0 to 1; one with a traceparent is traced as that says"),
)  # fmt: skip

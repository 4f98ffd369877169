"""Settings of a service beside its engine: access, tokens, latency targets, the web page, traces, registration."""

from chairlift.cli.settings.setting_declaration import Setting
from chairlift.cli.settings.value_parsers import boolean, number, one_of

ACCESS = (
    Setting(name="allowed_hosts", is_repeatable=True, flag_name="allowed_host", default_text="this machine's names",
            help="name that the header Host may have, as proxy.example.com or *.example.com; * is any name"),
    Setting(name="tls_client_ca", metavar="FILE",
            help="CA certificates (PEM); every client needs a certificate that one of them signed (mutual TLS)"),
)  # fmt: skip
"""Settings of who may connect, in addition to keys."""

PAGE = (Setting(name="ui", parse=boolean, default=True, help="serve the web page (chat and state) at /"),)
"""Settings of the web page."""

TOKENS = (
    Setting(name="jwt_secret_file", metavar="FILE",
            help="accept tokens (JWT) that are signed with the secret in FILE (HS256; 32 bytes or more)"),
    Setting(name="jwt_jwks_file", metavar="FILE",
            help="accept tokens (JWT) that a public key in FILE verifies (JWKS with RSA or P-256 keys)"),
    Setting(name="jwt_algorithm", parse=one_of("HS256", "RS256", "ES256"), metavar="ALG",
            default_text="that of the keys", help="only algorithm that tokens may have: HS256, RS256, ES256"),
    Setting(name="jwt_audience", metavar="TEXT", default_text="tokens without an audience",
            help="audience (aud) that tokens must be for"),
    Setting(name="jwt_issuer", metavar="TEXT", default_text="any", help="issuer (iss) that tokens must come from"),
    Setting(name="jwt_roles_claim", metavar="CLAIM", default="roles",
            help="claim with a token's roles, user or admin; a token without it has the role user"),
    Setting(name="jwt_tenant_claim", metavar="CLAIM", default="tenant",
            help="claim with a token's tenant; a token without it belongs to the tenant of its subject (sub)"),
    Setting(name="jwt_leeway", parse=number, metavar="SECONDS", default=30,
            help="seconds by which the clocks of server and issuer may differ"),
)  # fmt: skip
"""Settings of JSON Web Tokens, which requests may have instead of API keys."""

LATENCY_TARGETS = (
    Setting(name="slo_ttft_ms", parse=number, metavar="MS", default_text="no target",
            help="target of the time to the first token in milliseconds: metrics count the requests that meet it, and "
            "an autoscaler keeps it for --slo-quantile of them"),
    Setting(name="slo_itl_ms", parse=number, metavar="MS", default_text="no target",
            help="target of the inter-token latency in milliseconds, likewise"),
)  # fmt: skip
"""Settings of the latencies that requests are to have."""

TOKEN_COMMAND = tuple(
    setting for setting in TOKENS if setting.name not in ("jwt_jwks_file", "jwt_algorithm", "jwt_leeway")
)
"""The settings of TOKENS that `chairlift token` has, which signs with a secret."""

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
"""Settings of OpenTelemetry traces, of servers, routers and fleets."""

REGISTRATION = (
    Setting(name="register", metavar="URL",
            help="registry in which this replica registers itself for routers: etcd://HOST:2379/PREFIX or "
            "consul://HOST:8500/SERVICE"),
    Setting(name="advertise_url", metavar="URL", default_text="the scheme, address and port it listens on",
            help="URL at which routers reach this replica, as http://10.0.0.7:8000"),
    Setting(name="register_weight", parse=number, metavar="N", default=1,
            help="share of the requests that routers send to this replica, relative to the others"),
    Setting(name="register_version", metavar="TEXT", help="label of this replica for canaries, for routers"),
    Setting(name="register_zone", metavar="TEXT", help="label of the place in which this replica runs, for routers"),
)  # fmt: skip
"""Settings of the registration of a replica of a fleet."""

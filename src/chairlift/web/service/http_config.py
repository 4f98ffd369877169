"""HttpConfig: the settings that every HTTP service has, whatever it serves."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from chairlift.core.errors import ConfigError
from chairlift.web.admission import AdmissionLimits
from chairlift.web.auth.host_check import check_allowed_host, check_origin
from chairlift.web.batch_api.files_config import FilesConfig
from chairlift.web.bounded_http_protocol import HeadLimits
from chairlift.web.tenant_limits import TenantLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """Limits of requests, connections and tenants, and who may use the service.

    Attributes:
        max_body_bytes: largest request body.
        response_store_bytes: size of the stored responses of /v1/responses; 0 stores none.
        body_timeout: seconds in which a body must arrive.
        write_timeout: seconds in which a client must read what is sent to it.
        sse_ping_interval: seconds of silence after which a stream has a comment or a ping, and its head; 0 for never.
        idle_timeout: seconds for which a connection without a request stays open.
        drain_timeout: seconds within which open requests may finish at shutdown.
        public_metrics: whether /metrics needs no key.
        cors_origins: origins whose pages may use the API; "*" is any.
        ui: whether the service has the web page.
        allowed_hosts: names that the header Host may have, in addition to this machine's.
        log_stats_interval: seconds between two lines of throughput while there is traffic; 0 for none.
        slo_ttft_ms: target of the time to the first token, for the metrics; None for none.
        slo_itl_ms: target of the inter-token latency, for the metrics; None for none.
        head: limits of a request's header block.
        admission: limits of the admission queue.
        tenant: limits of each tenant.
        files: where uploaded files and batches are kept, and their limits.
    """

    max_body_bytes: int = 4_000_000
    response_store_bytes: int = 64_000_000
    body_timeout: float = 30.0
    write_timeout: float = 30.0
    sse_ping_interval: float = 5.0
    idle_timeout: float = 30.0
    drain_timeout: float = 30.0
    public_metrics: bool = False
    cors_origins: tuple[str, ...] = ()
    ui: bool = True
    allowed_hosts: tuple[str, ...] = ()
    log_stats_interval: float = 10.0
    slo_ttft_ms: float | None = None
    slo_itl_ms: float | None = None
    head: HeadLimits = field(default_factory=HeadLimits)
    admission: AdmissionLimits = field(default_factory=AdmissionLimits)
    tenant: TenantLimits = field(default_factory=TenantLimits)
    files: FilesConfig = field(default_factory=FilesConfig)

    def __post_init__(self) -> None:
        if self.max_body_bytes < 1:
            raise ConfigError(f"max_body_bytes must be at least 1, got {self.max_body_bytes}", option="max_body_bytes")
        if self.response_store_bytes < 0:
            raise ConfigError(
                f"response_store_bytes must be at least 0, got {self.response_store_bytes}",
                option="response_store_bytes",
            )
        seconds: Mapping[str, float] = {
            name: getattr(self, name) for name in ("body_timeout", "write_timeout", "idle_timeout")
        }
        for name, value in seconds.items():
            if not value > 0:
                raise ConfigError(f"{name} must be a positive number of seconds, got {value:g}", option=name)
        if not 0 <= self.sse_ping_interval < float("inf"):
            raise ConfigError(
                f"sse_ping_interval must be at least 0 seconds, got {self.sse_ping_interval:g}",
                option="sse_ping_interval",
            )
        for name in ("slo_ttft_ms", "slo_itl_ms"):
            if (target := getattr(self, name)) is not None and not 0 < target < float("inf"):
                raise ConfigError(f"{name} must be a positive number of milliseconds, got {target:g}", option=name)
        for name in self.allowed_hosts:
            check_allowed_host(name)
        for origin in self.cors_origins:
            check_origin(origin)
        for name in ("drain_timeout", "log_stats_interval"):
            if not (value := getattr(self, name)) >= 0:
                raise ConfigError(f"{name} must be at least 0, got {value:g}", option=name)

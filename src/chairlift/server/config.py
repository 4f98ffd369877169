"""ServerConfig: settings of one replica's API server."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from chairlift.core.errors import ConfigError
from chairlift.observability.metric_aliases import ALIAS_SETS
from chairlift.text.tool_formats.detect import tool_format_by_name
from chairlift.web.admission import AdmissionLimits
from chairlift.web.auth.host_check import check_allowed_host, check_origin
from chairlift.web.http_protocol import HeadLimits
from chairlift.web.tenant_limits import TenantLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Every setting of the API server but its listen address.

    Attributes:
        served_names: names of the model; a response repeats the name in its request.
        max_body_bytes: largest request body.
        body_timeout: seconds in which a body must arrive.
        write_timeout: seconds in which a client must read what is sent to it.
        idle_timeout: seconds for which a connection without a request stays open.
        drain_timeout: seconds within which open requests may finish at shutdown.
        reject_unknown_fields: reject requests with fields that have no effect, instead of naming them in a header.
        public_metrics: whether /metrics needs no key.
        cors_origins: origins whose pages may use the API; "*" is any.
        log_stats_interval: seconds between two lines of throughput while there is traffic; 0 for none.
        allowed_hosts: names that the header Host may have, in addition to this machine's.
        metric_aliases: sets of additional metric names on /metrics.
        tool_call_parser: name of the format of tool calls; None finds it in the chat template and the tokenizer.
        head: limits of a request's header block.
        admission: limits of the admission queue.
        tenant: limits of each tenant.
    """

    served_names: tuple[str, ...]
    max_body_bytes: int = 4_000_000
    body_timeout: float = 30.0
    write_timeout: float = 30.0
    idle_timeout: float = 30.0
    drain_timeout: float = 30.0
    reject_unknown_fields: bool = False
    public_metrics: bool = False
    cors_origins: tuple[str, ...] = ()
    log_stats_interval: float = 10.0
    allowed_hosts: tuple[str, ...] = ()
    metric_aliases: tuple[str, ...] = ()
    tool_call_parser: str | None = None
    head: HeadLimits = field(default_factory=HeadLimits)
    admission: AdmissionLimits = field(default_factory=AdmissionLimits)
    tenant: TenantLimits = field(default_factory=TenantLimits)

    def __post_init__(self) -> None:
        if not self.served_names:
            raise ConfigError("served_model_name must have at least one name, got none", option="served_model_name")
        if not all(self.served_names):
            raise ConfigError("served_model_name must not be empty, got ''", option="served_model_name")
        if self.max_body_bytes < 1:
            raise ConfigError(f"max_body_bytes must be at least 1, got {self.max_body_bytes}", option="max_body_bytes")
        seconds: Mapping[str, float] = {
            name: getattr(self, name) for name in ("body_timeout", "write_timeout", "idle_timeout")
        }
        for name, value in seconds.items():
            if not value > 0:
                raise ConfigError(f"{name} must be a positive number of seconds, got {value:g}", option=name)
        for system in self.metric_aliases:
            if system not in ALIAS_SETS:
                raise ConfigError(
                    f"metric_aliases must be {' or '.join(ALIAS_SETS)}, got {system!r}", option="metric_aliases"
                )
        for name in self.allowed_hosts:
            check_allowed_host(name)
        for origin in self.cors_origins:
            check_origin(origin)
        if self.tool_call_parser is not None:
            tool_format_by_name(self.tool_call_parser)
        for name in ("drain_timeout", "log_stats_interval"):
            if not (value := getattr(self, name)) >= 0:
                raise ConfigError(f"{name} must be at least 0, got {value:g}", option=name)

"""ServerConfig: settings of one replica's API server."""

from dataclasses import dataclass, field

from chairlift.core.errors import ConfigError
from chairlift.observability.metric_aliases import ALIAS_SETS
from chairlift.text.tool_formats.detect import tool_format_by_name
from chairlift.web.service.http_config import HttpConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Every setting of the API server but its listen address.

    Attributes:
        served_names: names of the model; a response repeats the name in its request.
        aliases: further names that requests may use, which no list shows: the path or id that the model has.
        drain_handover: seconds after which a drain aborts the requests that their router resumes on another replica.
        reject_unknown_fields: reject requests with fields that have no effect, instead of naming them in a header.
        metric_aliases: sets of additional metric names on /metrics.
        tool_call_parser: name of the format of tool calls; None finds it in the chat template and the tokenizer.
        http: the settings that every HTTP service has.
    """

    served_names: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    drain_handover: float = 5.0
    reject_unknown_fields: bool = False
    metric_aliases: tuple[str, ...] = ()
    tool_call_parser: str | None = None
    http: HttpConfig = field(default_factory=HttpConfig)

    def __post_init__(self) -> None:
        if not self.served_names:
            raise ConfigError("served_model_name must have at least one name, got none", option="served_model_name")
        if not all(self.served_names):
            raise ConfigError("served_model_name must not be empty, got ''", option="served_model_name")
        for system in self.metric_aliases:
            if system not in ALIAS_SETS:
                raise ConfigError(
                    f"metric_aliases must be {' or '.join(ALIAS_SETS)}, got {system!r}", option="metric_aliases"
                )
        if self.tool_call_parser is not None:
            tool_format_by_name(self.tool_call_parser)
        if not self.drain_handover >= 0:
            raise ConfigError(
                f"drain_handover must be at least 0, got {self.drain_handover:g}", option="drain_handover"
            )

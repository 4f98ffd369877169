"""TenantLimits: the limits of each tenant's requests and tokens, as the settings have them."""

import math
from dataclasses import dataclass

from chairlift.core.errors import ConfigError
from chairlift.core.validation import format_value


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimits:
    """Limits of each tenant; None means no limit.

    Attributes:
        tenant_requests_per_minute: requests started a minute.
        tenant_tokens_per_minute: prompt and output tokens a minute.
        tenant_max_open_requests: requests open at the same time.
    """

    tenant_requests_per_minute: float | None = None
    tenant_tokens_per_minute: float | None = None
    tenant_max_open_requests: int | None = None

    def __post_init__(self) -> None:
        for name in ("tenant_requests_per_minute", "tenant_tokens_per_minute", "tenant_max_open_requests"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} must be a positive number, got {format_value(value)}", option=name)

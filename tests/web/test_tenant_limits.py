"""TenantLimits: a limit that cannot be is an error that names its option."""

import math

import pytest

from chairlift.core.errors import ConfigError
from chairlift.web.tenant_limits import TenantLimits
from support_shares import for_each


@for_each("name", ["tenant_requests_per_minute", "tenant_tokens_per_minute", "tenant_max_open_requests"])
@for_each("value", [0, -1, math.nan, math.inf])
def test_a_limit_that_cannot_be_is_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be") as caught:
        TenantLimits(**{name: value})
    assert caught.value.details == {"option": name}

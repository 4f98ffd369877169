"""HttpConfig: limits by default, values on their bounds, and errors that name the option and the value."""

from math import inf, nan

import pytest

from chairlift.core.errors import ConfigError
from chairlift.web.admission import AdmissionLimits
from chairlift.web.bounded_http_protocol import HeadLimits
from chairlift.web.service.http_config import HttpConfig
from chairlift.web.tenant_limits import TenantLimits
from support_shares import for_each


def test_a_service_has_limits_by_default() -> None:
    config = HttpConfig()
    assert config.max_body_bytes == 4_000_000
    assert config.body_timeout == config.write_timeout == config.idle_timeout == config.drain_timeout == 30
    assert config.sse_ping_interval == 5
    assert (config.head, config.admission, config.tenant) == (HeadLimits(), AdmissionLimits(), TenantLimits())
    assert not (config.public_metrics or config.cors_origins or config.allowed_hosts)


@for_each(
    ("name", "values"),
    [
        ("max_body_bytes", [1]),
        ("body_timeout", [0.001, inf]),
        ("write_timeout", [0.001]),
        ("sse_ping_interval", [0, 0.001]),
        ("idle_timeout", [0.001]),
        ("drain_timeout", [0, 0.001, inf]),
        ("log_stats_interval", [0, 0.5, inf]),
        ("slo_ttft_ms", [0.001, 1e9]),
        ("slo_itl_ms", [0.001, 1e9]),
    ],
)
def test_values_on_the_bound_are_taken(name: str, values: list[float]) -> None:
    for value in values:
        assert getattr(HttpConfig(**{name: value}), name) == value  # type: ignore[arg-type]


@for_each(
    ("name", "values"),
    [
        ("max_body_bytes", [0, -1]),
        ("body_timeout", [0, -1, nan, -inf]),
        ("write_timeout", [0, -1, nan]),
        ("sse_ping_interval", [-1, nan, inf]),
        ("idle_timeout", [0, -1, nan]),
        ("drain_timeout", [-0.001, nan, -inf]),
        ("log_stats_interval", [-1, nan]),
        ("slo_ttft_ms", [0, -1, nan, inf]),
        ("slo_itl_ms", [0, -1, nan, inf]),
    ],
)
def test_values_past_the_bound_are_refused_with_the_option_and_the_value(name: str, values: list[float]) -> None:
    for value in values:
        with pytest.raises(ConfigError) as caught:
            HttpConfig(**{name: value})  # type: ignore[arg-type]
        assert caught.value.details["option"] == name
        assert f"got {value:g}" in caught.value.message


def test_hosts_and_origins_that_no_request_can_have_are_rejected() -> None:
    for options in ({"allowed_hosts": ("a", "a:80")}, {"cors_origins": ("https://a", "a")}):
        with pytest.raises(ConfigError):
            HttpConfig(**options)  # type: ignore[arg-type]

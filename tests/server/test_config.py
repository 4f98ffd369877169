"""ServerConfig: rejects an invalid option at the start, by the name of the option."""

from math import inf, nan
from typing import Any

import pytest

from chairlift.core.errors import ConfigError
from chairlift.observability.metric_aliases import ALIAS_SETS
from chairlift.server.config import ServerConfig
from chairlift.web.admission import AdmissionLimits
from chairlift.web.http_protocol import HeadLimits
from chairlift.web.tenant_limits import TenantLimits


def test_a_server_has_limits_by_default() -> None:
    config = ServerConfig(served_names=("m",))
    assert config.max_body_bytes == 4_000_000
    assert config.body_timeout == config.write_timeout == config.idle_timeout == config.drain_timeout == 30
    assert (config.head, config.admission, config.tenant) == (HeadLimits(), AdmissionLimits(), TenantLimits())
    assert not (config.reject_unknown_fields or config.public_metrics or config.cors_origins or config.metric_aliases)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("max_body_bytes", [1]),
        ("body_timeout", [0.001, inf]),
        ("write_timeout", [0.001]),
        ("idle_timeout", [0.001]),
        ("drain_timeout", [0, 0.001, inf]),
        ("log_stats_interval", [0, 0.5, inf]),
        ("metric_aliases", [(), tuple(ALIAS_SETS)]),
        ("served_names", [("a", "b")]),
    ],
)
def test_values_on_the_bound_are_taken(name: str, values: list[Any]) -> None:
    for value in values:
        assert getattr(ServerConfig(**{"served_names": ("m",), name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "option", "values"),
    [
        ("served_names", "served_model_name", [(), ("",), ("m", "")]),
        ("max_body_bytes", "max_body_bytes", [0, -1]),
        ("body_timeout", "body_timeout", [0, -1, nan, -inf]),
        ("write_timeout", "write_timeout", [0, -1, nan]),
        ("idle_timeout", "idle_timeout", [0, -1, nan]),
        ("drain_timeout", "drain_timeout", [-0.001, nan, -inf]),
        ("log_stats_interval", "log_stats_interval", [-1, nan]),
        ("metric_aliases", "metric_aliases", [("vllm", "sglang"), ("",)]),
    ],
)
def test_values_past_the_bound_are_refused_with_the_option_and_the_value(
    name: str, option: str, values: list[Any]
) -> None:
    for value in values:
        with pytest.raises(ConfigError) as caught:
            ServerConfig(**{"served_names": ("m",), name: value})
        assert caught.value.details["option"] == option
        if not isinstance(value, tuple):
            assert f"got {value:g}" in caught.value.message


def test_a_config_cannot_change() -> None:
    with pytest.raises(AttributeError):
        ServerConfig(served_names=("m",)).reject_unknown_fields = True  # type: ignore[misc]


def test_hosts_and_origins_that_no_request_can_have_are_rejected() -> None:
    for options in ({"allowed_hosts": ("a", "a:80")}, {"cors_origins": ("https://a", "a")}):
        with pytest.raises(ConfigError):
            ServerConfig(served_names=("m",), **options)


def test_a_parser_of_calls_has_a_known_name() -> None:
    for name in (None, "hermes", "llama3_json"):
        assert ServerConfig(served_names=("m",), tool_call_parser=name).tool_call_parser == name
    with pytest.raises(ConfigError, match=r"must be one of hermes, .*; got 'hermess'") as caught:
        ServerConfig(served_names=("m",), tool_call_parser="hermess")
    assert caught.value.details["option"] == "tool_call_parser"

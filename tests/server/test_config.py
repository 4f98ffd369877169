"""ServerConfig: what a door cannot be told is refused at the start, by the option's name."""

from math import inf, nan
from typing import Any

import pytest

from chairlift.core.errors import ConfigError
from chairlift.observability.metric_aliases import ALIAS_SETS
from chairlift.server.config import ServerConfig
from chairlift.web.admission import AdmissionLimits
from chairlift.web.http_protocol import HeadLimits
from chairlift.web.tenant_limits import TenantLimits


def test_a_door_has_bounds_without_being_told() -> None:
    config = ServerConfig(served_names=("m",))
    assert config.max_body_bytes == 4_000_000
    assert config.body_seconds == config.write_seconds == config.idle_seconds == config.drain_seconds == 30
    assert (config.head, config.admission, config.tenant) == (HeadLimits(), AdmissionLimits(), TenantLimits())
    assert not (config.strict or config.open_metrics or config.cors_origins or config.metric_aliases)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("max_body_bytes", [1]),
        ("body_seconds", [0.001, inf]),
        ("write_seconds", [0.001]),
        ("idle_seconds", [0.001]),
        ("drain_seconds", [0, 0.001, inf]),
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
        ("body_seconds", "body_seconds", [0, -1, nan, -inf]),
        ("write_seconds", "write_seconds", [0, -1, nan]),
        ("idle_seconds", "idle_seconds", [0, -1, nan]),
        ("drain_seconds", "drain_seconds", [-0.001, nan, -inf]),
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
        ServerConfig(served_names=("m",)).strict = True  # type: ignore[misc]

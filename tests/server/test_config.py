"""ServerConfig: rejects an invalid option at the start, by the name of the option."""

from math import inf, nan
from typing import Any

import pytest

from chairlift.core.errors import ConfigError
from chairlift.observability.metric_aliases import ALIAS_SETS
from chairlift.server.config import ServerConfig
from chairlift.web.service.http_config import HttpConfig


def test_a_server_has_no_options_by_default() -> None:
    config = ServerConfig(served_names=("m",))
    assert config.http == HttpConfig()
    assert not (config.reject_unknown_fields or config.metric_aliases or config.tool_call_parser)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("drain_handover", [0, 0.001, inf]),
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
        ("drain_handover", "drain_handover", [-0.001, nan, -inf]),
        ("metric_aliases", "metric_aliases", [("vllm", "sglang"), ("",)]),
    ],
)
def test_values_past_the_bound_are_refused_with_the_option(name: str, option: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ConfigError) as caught:
            ServerConfig(**{"served_names": ("m",), name: value})
        assert caught.value.details["option"] == option


def test_a_config_cannot_change() -> None:
    with pytest.raises(AttributeError):
        ServerConfig(served_names=("m",)).reject_unknown_fields = True  # type: ignore[misc]


def test_a_parser_of_calls_has_a_known_name() -> None:
    for name in (None, "hermes", "llama3_json"):
        assert ServerConfig(served_names=("m",), tool_call_parser=name).tool_call_parser == name
    with pytest.raises(ConfigError, match=r"must be one of hermes, .*; got 'hermess'") as caught:
        ServerConfig(served_names=("m",), tool_call_parser="hermess")
    assert caught.value.details["option"] == "tool_call_parser"

"""RayConfig: names and times that cannot work are rejected; without ray the message says what to install."""

import importlib.util
from typing import Any

import pytest

from chairlift.cluster.ray.cluster import RayCluster
from chairlift.cluster.ray.config import RayConfig
from chairlift.core.errors import ConfigError
from support_shares import for_each


@for_each(
    ("options", "text"),
    [
        ({"fleet": ""}, "the fleet's name '' is not valid"),
        ({"fleet": "a:b"}, "'a:b'"),
        ({"fleet": "-a"}, "'-a'"),
        ({"fleet": "a" * 41}, "up to 40"),
        ({"address": ""}, "give Ray's address"),
        ({"stop_timeout_seconds": 0.0}, "stop_timeout_seconds is 0.0"),
        ({"call_timeout_seconds": float("nan")}, "call_timeout_seconds is nan"),
    ],
)
def test_an_invalid_field_is_rejected(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        RayConfig(**options)


@pytest.mark.parametrize("fleet", ["a", "a1", "my-fleet", "a" * 40])
def test_a_valid_name_is_kept(fleet: str) -> None:
    assert RayConfig(fleet=fleet).fleet == fleet


@pytest.mark.parametrize("error", [None, ImportError("ray is blocked")])
def test_without_ray_a_cluster_says_what_to_install(error: Exception | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> None:
        assert name == "ray"
        if error is not None:
            raise error

    monkeypatch.setattr(importlib.util, "find_spec", find)
    with pytest.raises(ConfigError, match=r'pip install "chairlift\[ray\]"'):
        RayCluster(RayConfig())

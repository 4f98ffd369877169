"""Whatever etcd, Consul, Kubernetes or a file answers: valid values, or a typed error that keeps the last list."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.core.errors import ConfigError
from chairlift.core.router_errors import DiscoveryFailed
from chairlift.router.discovery.consul import ConsulSource
from chairlift.router.discovery.etcd import _parse_record
from chairlift.router.discovery.kubernetes import KubernetesSource
from chairlift.router.discovery.replica_file import parse_replica_file
from chairlift.router.endpoint import Endpoint
from chairlift.web.registry.consul_client import ConsulClient
from chairlift.web.registry.etcd_client import EtcdClient, EtcdKey, _changes, parse_etcd_url
from chairlift.web.registry.json_client import JSONResponse
from chairlift.web.registry.kubernetes_client import VersionExpired, apply_event
from support_shares import FULL

NAMES = (
    "result", "header", "revision", "events", "type", "kv", "key", "value", "lease", "canceled", "compact_revision",
    "error", "kvs", "ID", "TTL", "Service", "Node", "Address", "Port", "Meta", "Weights", "Passing", "metadata", "name",
    "resourceVersion", "items", "continue", "object", "code", "endpoints", "ports", "port", "addresses", "conditions",
    "ready", "zone", "url", "weight", "models", "kind", "version", "replicas",
)  # fmt: skip
TEXTS = (
    "", "1", "L2Ev", "PUT", "DELETE", "ADDED", "DELETED", "BOOKMARK", "ERROR", "http", "h", "::1", "http://h:1", "\x00",
)  # fmt: skip
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-2, 2**63), st.floats(), st.sampled_from(TEXTS))
JSON_VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)
EXAMPLES = settings(max_examples=150 if FULL else 15, deadline=None)


class FakeJSON:
    """A client that returns one answer."""

    base_url = "http://fake"

    def __init__(self, body: Any) -> None:
        self._response = JSONResponse(200, body, {"X-Consul-Index": "1"})

    async def call(self, *_: Any, **__: Any) -> JSONResponse:
        return self._response


@EXAMPLES
@given(JSON_VALUES)
def test_etcd(body: Any) -> None:
    async def lines() -> AsyncIterator[Any]:
        yield body

    async def scenario() -> None:
        client = EtcdClient(FakeJSON(body), parse_etcd_url("etcd://h/p"))  # type: ignore[arg-type]
        calls = (client.list_keys("/p/"), client.grant_lease(3), client.renew_lease(1), client.lease_of("/p/a"))
        for call in calls:
            with contextlib.suppress(DiscoveryFailed):
                await call
        with contextlib.suppress(DiscoveryFailed):
            assert len([each async for each in _changes(lines())]) == 1

    asyncio.run(scenario())
    record = _parse_record(EtcdKey("/p/a", orjson.dumps(body)), {})
    assert record is None or isinstance(record, Endpoint)


@EXAMPLES
@given(JSON_VALUES, st.booleans())
def test_consul(body: Any, is_list: bool) -> None:
    async def scenario() -> None:
        client = ConsulClient(FakeJSON([body] if is_list else body))  # type: ignore[arg-type]
        instances, _ = await client.list_healthy("llm")
        ConsulSource("consul://h/llm")._snapshot(instances)

    with contextlib.suppress(DiscoveryFailed):
        asyncio.run(scenario())


@EXAMPLES
@given(JSON_VALUES, st.booleans())
def test_kubernetes(body: Any, is_slice: bool) -> None:
    source = KubernetesSource("kubernetes://n/llm?server=http://h")
    if is_slice and isinstance(body, dict):
        body = {"metadata": {"name": "a", "resourceVersion": "1"}, **body}
    answers = [body, {"metadata": {"resourceVersion": "1"}, "items": [body]}]
    for answer in answers:
        if isinstance(answer, dict) and isinstance(answer.get("metadata"), dict):
            answer["metadata"].pop("continue", None)  # the fake would give the same page forever
        try:
            slices, _ = asyncio.run(source._list(FakeJSON(answer)))  # type: ignore[arg-type]
            source._snapshot(slices)
        except DiscoveryFailed:
            pass
    for kind in ("ADDED", "ERROR", body):
        slices = {}
        try:
            apply_event(slices, {"type": kind, "object": body})
            source._snapshot(slices)
        except (DiscoveryFailed, VersionExpired):
            pass


@EXAMPLES
@given(st.one_of(JSON_VALUES.map(orjson.dumps), st.binary(max_size=40)))
def test_file(data: bytes) -> None:
    with contextlib.suppress(ConfigError):
        assert all(isinstance(each, Endpoint) for each in parse_replica_file(data, Path("replicas.yaml")))


def test_the_answers_are_not_all_rejected() -> None:
    with pytest.raises(DiscoveryFailed):
        asyncio.run(EtcdClient(FakeJSON({}), parse_etcd_url("etcd://h/p")).grant_lease(3))  # type: ignore[arg-type]
    good = FakeJSON({"ID": "7"})
    assert asyncio.run(EtcdClient(good, parse_etcd_url("etcd://h/p")).grant_lease(3)) == 7  # type: ignore[arg-type]

"""kubernetes_client.py: bounds of lists; test_kubernetes.py of the discovery has its watches, pages and servers."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from chairlift.core.errors import ConfigError
from chairlift.core.router_errors import DiscoveryFailed
from chairlift.web.registry.json_client import JSONResponse
from chairlift.web.registry.kubernetes_client import (
    MAX_PAGES,
    SERVER_OPTIONS,
    VersionExpired,
    apply_event,
    find_api_server,
    list_objects,
    parse_namespace,
)
from chairlift.web.registry.registry_url import parse_registry_url


def objects(*names: str) -> list[dict[str, Any]]:
    return [{"metadata": {"name": name}} for name in names]


async def one_page(params: Sequence[tuple[str, str]]) -> JSONResponse:
    return JSONResponse(200, {"metadata": {"resourceVersion": "7"}, "items": objects("a", "b")})


def test_a_list_is_bounded() -> None:
    found, version = asyncio.run(list_objects(one_page, (), kind="pods", limit=2))
    assert (sorted(found), version) == (["a", "b"], "7")
    with pytest.raises(DiscoveryFailed, match="the list has more than 1 pods, the limit"):
        asyncio.run(list_objects(one_page, (), kind="pods", limit=1))


def test_pages_without_an_end_are_bounded() -> None:
    num_pages = 0

    async def get_page(params: Sequence[tuple[str, str]]) -> JSONResponse:
        nonlocal num_pages
        num_pages += 1
        return JSONResponse(200, {"metadata": {"resourceVersion": "7", "continue": "x"}, "items": []})

    with pytest.raises(DiscoveryFailed, match=f"more than {MAX_PAGES} pages, the limit"):
        asyncio.run(list_objects(get_page, (), kind="pods", limit=1))
    assert num_pages == MAX_PAGES


def test_events_change_the_objects() -> None:
    found: dict[str, Any] = {}
    for kind, names in (("ADDED", ["a"]), ("MODIFIED", ["a"]), ("BOOKMARK", ["a"]), ("DELETED", [])):
        version = apply_event(found, {"type": kind, "object": {"metadata": {"name": "a", "resourceVersion": kind}}})
        assert (version, list(found)) == (kind, names)
    with pytest.raises(VersionExpired):
        apply_event(found, {"type": "ERROR", "object": {"code": 410}})


def test_the_server_and_the_namespace_of_a_url() -> None:
    text = "kubernetes://prod/llm?server=https://h:1/"
    url = parse_registry_url(text, options=SERVER_OPTIONS, default_port=1, form="")
    assert find_api_server(url, {}).base_urls == ("https://h:1",) and parse_namespace(url, "") == "prod"
    bad = {"": "needs a pod of the cluster", "?server=h": "must look like https://10.0.0.1:6443, got 'h'"}
    for options, message in bad.items():
        url = parse_registry_url(f"kubernetes://prod/llm{options}", options=SERVER_OPTIONS, default_port=1, form="")
        with pytest.raises(ConfigError, match=message):
            find_api_server(url, {})
    url = parse_registry_url("kubernetes://prod:8/llm", options=(), default_port=1, form="")
    with pytest.raises(ConfigError, match="should look like the form"):
        parse_namespace(url, "the form")

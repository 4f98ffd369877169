"""The anthropic client's keys and limits: x-api-key and Authorization, of a server and of a router."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from chairlift.web.auth.api_keys import key_line
from support_router_process import router_server
from support_server import Server, real_server

KEYS = {"alice": "the-key-of-alice", "bob": "the-key-of-bob"}
ASK: Any = {"model": "chairlift:demo", "max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture(scope="module", params=["direct", "router"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server, or a router in front of one, with the keys of two tenants that may each start two requests a minute."""
    file: Path = tmp_path_factory.mktemp("keys") / "keys.txt"
    file.write_text("\n".join(key_line(key, tenant) for tenant, key in KEYS.items()), encoding="utf-8")
    options = ("--key-file", str(file), "--tenant-requests-per-minute", "2")
    if request.param == "direct":
        with real_server(*options) as running:
            yield running
        return
    with real_server() as replica, router_server(replica, options=options) as router:
        yield router


@pytest.mark.share(1)
def test_a_key_and_its_tenants_limit(server: Server) -> None:
    with anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0) as client:
        with pytest.raises(anthropic.AuthenticationError) as refusal:
            client.messages.create(**ASK)
        assert refusal.value.type == "authentication_error" and refusal.value.request_id
        with pytest.raises(anthropic.AuthenticationError):
            client.messages.count_tokens(model=ASK["model"], messages=ASK["messages"])
    with anthropic.Anthropic(base_url=server.url, api_key=KEYS["alice"], max_retries=0) as client:
        assert client.messages.create(**ASK).usage.output_tokens == 2
        with client.messages.stream(**ASK) as events:
            assert events.get_final_message().usage.output_tokens == 2
        with pytest.raises(anthropic.RateLimitError) as limited:
            client.messages.create(**ASK)
        assert limited.value.type == "rate_limit_error" and int(limited.value.response.headers["retry-after"]) > 0
        assert client.messages.count_tokens(model=ASK["model"], messages=ASK["messages"]).input_tokens > 0
    with anthropic.Anthropic(base_url=server.url, auth_token=KEYS["bob"], max_retries=0) as client:
        assert client.messages.create(**ASK).usage.output_tokens == 2, "another tenant has its own limit"


@pytest.mark.share(1)
def test_both_headers_or_none(server: Server) -> None:
    url, key = f"{server.url}/v1/messages/count_tokens", KEYS["alice"]
    body = {"model": ASK["model"], "messages": ASK["messages"]}
    for headers, status in (
        ([], 401), ([("x-api-key", key)], 200), ([("x-api-key", key), ("x-api-key", key)], 401),
        ([("x-api-key", key), ("authorization", "Bearer wrong")], 401),
    ):  # fmt: skip
        answer = httpx.post(url, json=body, headers=headers, timeout=60)
        assert answer.status_code == status, answer.text
        assert status == 200 or answer.json()["type"] == "error"

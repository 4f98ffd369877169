"""A flood of requests: each is admitted or rejected early, and all permits are released."""

import asyncio
import json
from collections import Counter
from typing import Any

import httpx
import pytest

from chairlift.engine.runner.fake_model import FakeConfig
from support_process import TIMEOUT_SECONDS, wait_until
from support_server import ADMIN_KEY, COMPLETIONS, Server, fake_server, run

SLOW_ENGINE = FakeConfig(vocab_size=128, max_model_len=512, num_blocks=512, seconds_per_step=0.02)
BODY: dict[str, Any] = {"model": "fake", "prompt": "hello", "max_tokens": 5, "seed": 1}
LOW_LIMIT = {"max_waiting_requests": 5}
ONE_SLOT = {"max_running_requests": 1}


def admission_counts(server: Server) -> tuple[int, int]:
    """Return the numbers of requests that wait in admission, and of open requests."""
    load = httpx.get(server.url + "/load", timeout=TIMEOUT_SECONDS).json()
    return load["admission_waiting_requests"], round(server.metric("requests_open"))


async def send_many(server: Server, count: int, **fields: Any) -> list[httpx.Response]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, limits=limits, timeout=TIMEOUT_SECONDS) as http:
        return list(await asyncio.gather(*(http.post(COMPLETIONS, json={**BODY, **fields}) for _ in range(count))))


@pytest.mark.full
def test_who_is_let_in_is_served_and_the_rest_hears_at_once_when_to_come_again() -> None:
    with fake_server(SLOW_ENGINE, server={"admission": LOW_LIMIT}, scheduler=ONE_SLOT) as server:
        choices = httpx.post(server.url + COMPLETIONS, json=BODY, timeout=TIMEOUT_SECONDS).json()["choices"]
        responses = run(send_many(server, 100))
        statuses = Counter(response.status_code for response in responses)
        assert set(statuses) == {200, 429} and statuses[200] >= 5
        for response in responses:
            if response.status_code == 200:
                assert response.json()["choices"] == choices
            else:
                assert response.json()["error"]["code"] == "overloaded"
                assert int(response.headers["retry-after"]) >= 1 and "date" in response.headers
        wait_until(lambda: admission_counts(server) == (0, 0))
        assert server.metric("requests_rejected_total") == statuses[429]
        assert server.metric("http_requests_total") >= 101
        assert httpx.post(server.url + COMPLETIONS, json=BODY, timeout=TIMEOUT_SECONDS).json()["choices"] == choices


@pytest.mark.full
def test_what_is_let_in_and_is_bad_gives_its_permit_back() -> None:
    with fake_server(SLOW_ENGINE, server={"admission": LOW_LIMIT}, scheduler=ONE_SLOT, admin=True) as server:
        for body in (b"{", b"[]", b'{"model": "fake"}', b'{"model": "other", "prompt": "a"}', b'{"prompt": 5}') * 4:
            response = httpx.post(server.url + COMPLETIONS, content=body, timeout=TIMEOUT_SECONDS)
            assert response.status_code in (400, 404), response.text
        wait_until(lambda: admission_counts(server) == (0, 0))  # the server writes its gauges once a second
        state = httpx.get(server.url + "/admin/state", headers={"authorization": f"Bearer {ADMIN_KEY}"}).json()
        assert state["scheduler"]["waiting_requests"] == 0


def test_a_request_that_would_wait_beyond_its_timeout_is_rejected() -> None:
    with fake_server(SLOW_ENGINE, server={"admission": {"max_waiting_requests": 50}}, scheduler=ONE_SLOT) as server:
        run(send_many(server, 20))  # so that a rate is measured
        responses = run(send_many(server, 40, timeout=0.2))
        codes = Counter(response.json()["error"]["code"] for response in responses if response.status_code != 200)
        assert (
            set(codes) <= {"overloaded", "timeout", "deadline_unreachable", "timeout_too_short"} and codes["overloaded"]
        )
        wait_until(lambda: admission_counts(server) == (0, 0))


def test_a_slow_body_blocks_no_other_request() -> None:
    async def send_slowly(server: Server) -> None:
        body = json.dumps(BODY).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
        pairs = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(20)]
        for _, writer in pairs:
            writer.write(head + body[:20])
            await writer.drain()
        assert {response.status_code for response in await send_many(server, 3)} == {200}
        for _, writer in pairs[:10]:
            writer.transport.abort()
        for reader, writer in pairs[10:]:
            writer.write(body[20:])
            assert b" 200 " in await reader.readline()
            writer.close()

    with fake_server(SLOW_ENGINE, server={"admission": LOW_LIMIT}) as server:
        run(send_slowly(server))
        wait_until(lambda: admission_counts(server) == (0, 0))
        assert httpx.post(server.url + COMPLETIONS, json=BODY, timeout=TIMEOUT_SECONDS).status_code == 200

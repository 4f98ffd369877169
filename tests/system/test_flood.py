"""A flood of requests on a whole server: each is let in or turned away by its head, and every permit comes back."""

import asyncio
import json
from collections import Counter
from typing import Any

import httpx

from chairlift.engine.runner.fake import FakeConfig
from support_process import PATIENCE, wait_until
from support_server import ADMIN_KEY, COMPLETIONS, Server, fake_server, run

SLOW = FakeConfig(vocab_size=128, max_model_len=512, num_blocks=512, seconds_per_step=0.02)
ASKED: dict[str, Any] = {"model": "fake", "prompt": "hello", "max_tokens": 5, "seed": 1}
FEW = {"max_waiting_requests": 5}
ONE_SLOT = {"max_running_requests": 1}


def port_of(server: Server) -> tuple[int, int]:
    """Return how many requests wait in admission, and how many are open."""
    load = httpx.get(server.url + "/load", timeout=PATIENCE).json()
    return load["admission_waiting_requests"], round(server.metric("open_requests"))


async def flood(server: Server, count: int, **asked: Any) -> list[httpx.Response]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, limits=limits, timeout=PATIENCE) as http:
        return list(await asyncio.gather(*(http.post(COMPLETIONS, json={**ASKED, **asked}) for _ in range(count))))


def test_who_is_let_in_is_served_and_the_rest_hears_at_once_when_to_come_again() -> None:
    with fake_server(SLOW, server={"admission": FEW}, scheduler=ONE_SLOT) as server:
        good = httpx.post(server.url + COMPLETIONS, json=ASKED, timeout=PATIENCE).json()["choices"]
        responses = run(flood(server, 100))
        statuses = Counter(response.status_code for response in responses)
        assert set(statuses) == {200, 429} and statuses[200] >= 5
        for response in responses:
            if response.status_code == 200:
                assert response.json()["choices"] == good
            else:
                assert response.json()["error"]["code"] == "overloaded"
                assert int(response.headers["retry-after"]) >= 1 and "date" in response.headers
        wait_until(lambda: port_of(server) == (0, 0))
        assert server.metric("refusals_total") == statuses[429]
        assert server.metric("http_requests_total") >= 101
        assert httpx.post(server.url + COMPLETIONS, json=ASKED, timeout=PATIENCE).json()["choices"] == good


def test_what_is_let_in_and_is_bad_gives_its_permit_back() -> None:
    with fake_server(SLOW, server={"admission": FEW}, scheduler=ONE_SLOT, admin=True) as server:
        for body in (b"{", b"[]", b'{"model": "fake"}', b'{"model": "other", "prompt": "a"}', b'{"prompt": 5}') * 4:
            response = httpx.post(server.url + COMPLETIONS, content=body, timeout=PATIENCE)
            assert response.status_code in (400, 404), response.text
        assert port_of(server) == (0, 0)
        state = httpx.get(server.url + "/admin/state", headers={"authorization": f"Bearer {ADMIN_KEY}"}).json()
        assert state["scheduler"]["waiting_requests"] == 0


def test_a_request_that_would_wait_beyond_its_timeout_is_rejected() -> None:
    with fake_server(SLOW, server={"admission": {"max_waiting_requests": 50}}, scheduler=ONE_SLOT) as server:
        run(flood(server, 20))  # so that a pace is known
        responses = run(flood(server, 40, timeout=0.2))
        codes = Counter(response.json()["error"]["code"] for response in responses if response.status_code != 200)
        assert set(codes) <= {"overloaded", "timeout", "deadline_unreachable"} and codes["overloaded"]
        wait_until(lambda: port_of(server) == (0, 0))


def test_a_slow_body_blocks_no_other_request() -> None:
    async def trickle(server: Server) -> None:
        body = json.dumps(ASKED).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        pairs = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(20)]
        for _, writer in pairs:
            writer.write(head + body[:20])
            await writer.drain()
        assert {response.status_code for response in await flood(server, 3)} == {200}
        for _, writer in pairs[:10]:
            writer.transport.abort()
        for reader, writer in pairs[10:]:
            writer.write(body[20:])
            assert b" 200 " in await reader.readline()
            writer.close()

    with fake_server(SLOW, server={"admission": FEW}) as server:
        run(trickle(server))
        wait_until(lambda: port_of(server) == (0, 0))
        assert httpx.post(server.url + COMPLETIONS, json=ASKED, timeout=PATIENCE).status_code == 200

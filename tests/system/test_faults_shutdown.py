"""Shutdown: open requests finish or are aborted, and new ones are rejected."""

import asyncio
import signal
import time
from typing import Any

import httpx
import pytest

from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.web.auth.api_keys import key_line
from support_faults import LONG_REQUEST, NUM_STREAMS, SLOW_ENGINE, read_stream, run_streams_during, unlimited_client
from support_process import wait_until
from support_server import CHAT, COMPLETIONS, HELLO, events, fake_server, run


def is_aborted(text: str) -> bool:
    """Whether a stream ends with the error of a server that leaves, and not as a complete one."""
    name, data = events(text)[-1]
    return name == "error" and (data["error"]["code"], data["error"]["retryable"]) == ("draining", True)


def test_sigterm_lets_open_requests_finish_and_refuses_new_ones() -> None:
    with fake_server(SLOW_ENGINE, server={"drain_timeout": 30.0}) as server:
        rejections: list[httpx.Response] = []

        def shut_down() -> None:
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: httpx.get(server.url + "/readyz").status_code == 503)
            rejections.append(httpx.post(server.url + CHAT, json=HELLO))

        results = run(run_streams_during(server, shut_down))
        assert [status for status, _ in results] == [200] * NUM_STREAMS
        assert all(text.endswith("data: [DONE]\n\n") for _, text in results)
        assert all(events(text)[-2]["choices"][0]["finish_reason"] == "length" for _, text in results)
        assert rejections[0].status_code == 503 and rejections[0].headers["connection"] == "close"
        assert rejections[0].json()["error"]["code"] == "draining" and "retry-after" in rejections[0].headers
        assert server.wait_for_exit() == 0 and "stopped" in server.log


@pytest.mark.share(1)
@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_ends_what_is_open(signal_number: int) -> None:
    with fake_server(SLOW_ENGINE, server={"drain_timeout": 60.0}) as server:

        def shut_down() -> None:
            server.process.send_signal(signal_number)
            time.sleep(0.3)
            server.process.send_signal(signal_number)

        results = run(run_streams_during(server, shut_down))
        assert all(is_aborted(text) for _, text in results)
        assert server.wait_for_exit() == 0


@pytest.mark.full
def test_what_does_not_finish_in_time_is_aborted() -> None:
    with fake_server(SLOW_ENGINE, server={"drain_timeout": 0.5}) as server:
        results = run(run_streams_during(server, lambda: server.process.send_signal(signal.SIGTERM)))
        assert all(is_aborted(text) for _, text in results)
        assert server.wait_for_exit() == 0


def test_a_drain_hands_the_streams_of_a_router_over_and_lets_others_finish() -> None:
    router = {"x-chairlift-router": "1"}
    requests: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({**LONG_REQUEST, "stream": True, "return_token_ids": True}, router),
        (LONG_REQUEST, {**router, "x-chairlift-progress": "1"}),
        ({**LONG_REQUEST, "stream": True}, router),  # without token ids it cannot be resumed
        ({**LONG_REQUEST, "stream": True, "return_token_ids": True}, {}),
    ]
    slow_engine = FakeConfig(vocab_size=128, max_model_len=512, num_blocks=512, seconds_per_step=0.004, verify=False)
    with fake_server(slow_engine, server={"drain_timeout": 30.0, "drain_handover": 0.3}) as server:
        started: list[int] = []

        async def read(http: httpx.AsyncClient, body: dict[str, Any], headers: dict[str, str]) -> str:
            async with http.stream("POST", COMPLETIONS, json=body, headers=headers) as response:
                text = ""
                async for piece in response.aiter_text():
                    started.extend([] if text else [1])
                    text += piece
                return text

        async def run_all() -> list[str]:
            async with unlimited_client(server) as http:
                tasks = [asyncio.create_task(read(http, body, headers)) for body, headers in requests]
                while len(started) < len(requests):
                    await asyncio.sleep(0.01)
                server.process.send_signal(signal.SIGTERM)
                return await asyncio.gather(*tasks)

        streamed, progress, *others = run(run_all())
        assert is_aborted(streamed) and is_aborted(progress)
        assert all(text.endswith("data: [DONE]\n\n") for text in others)
        assert server.wait_for_exit() == 0 and "handed over 2 requests" in server.log


def test_a_response_that_is_not_streamed_is_refused_where_its_server_leaves() -> None:
    with fake_server(SLOW_ENGINE, server={"drain_timeout": 0.2}) as server:

        async def scenario() -> httpx.Response:
            async with unlimited_client(server) as http:
                task = asyncio.create_task(http.post(COMPLETIONS, json=LONG_REQUEST))
                while (await http.get("/load")).json()["running_requests"] < 1:
                    await asyncio.sleep(0.02)
                server.process.send_signal(signal.SIGTERM)
                return await task

        response = run(scenario())
        assert response.status_code == 503 and response.json()["error"]["code"] == "draining"
        assert "retry-after" in response.headers


def test_an_operator_can_drain_it() -> None:
    with fake_server(admin=True) as server:
        response = httpx.post(server.url + "/admin/drain", headers={"authorization": "Bearer the-admin-key"})
        assert response.status_code == 202
        assert server.wait_for_exit() == 0


@pytest.mark.full
def test_a_signal_behind_a_drain_still_lets_open_requests_finish() -> None:
    """Kubernetes' preStop hook drains before SIGTERM; only a second signal aborts."""
    with fake_server(SLOW_ENGINE, admin=True, server={"drain_timeout": 60.0}) as server:

        def shut_down() -> None:
            response = httpx.post(server.url + "/admin/drain", headers={"authorization": "Bearer the-admin-key"})
            assert response.status_code == 202
            server.process.send_signal(signal.SIGTERM)

        results = run(run_streams_during(server, shut_down))
        assert all(events(text)[-2]["choices"][0]["finish_reason"] == "length" for _, text in results)
        assert server.wait_for_exit() == 0


def test_aborts_are_waited_for_where_a_step_is_long() -> None:
    slow_engine = FakeConfig(vocab_size=128, max_model_len=512, num_blocks=512, seconds_per_step=1.0, verify=False)
    with fake_server(slow_engine, server={"drain_timeout": 0.0}) as server:
        started: list[int] = []

        async def run_streams() -> list[tuple[int, str]]:
            async with unlimited_client(server) as http:
                tasks = [
                    asyncio.create_task(read_stream(http, LONG_REQUEST, lambda: started.append(1))) for _ in range(3)
                ]
                while len(started) < 3:
                    await asyncio.sleep(0.02)
                server.process.send_signal(signal.SIGTERM)
                return await asyncio.gather(*tasks)

        results = run(run_streams())
        assert all(is_aborted(text) for _, text in results)
        assert server.wait_for_exit() == 0


def test_sighup_reads_the_keys_again(tmp_path: Any) -> None:
    file = tmp_path / "keys.txt"
    file.write_text(key_line("first", "alice") + "\n", encoding="utf-8")
    with fake_server(keys=str(file)) as server:

        def status(key: str) -> int:
            return httpx.get(server.url + "/v1/models", headers={"authorization": f"Bearer {key}"}).status_code

        assert (status("first"), status("second")) == (200, 401)
        file.write_text("nonsense\n", encoding="utf-8")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "the old keys" in server.log)
        assert (status("first"), status("second")) == (200, 401)
        file.write_text(key_line("second", "alice") + "\n", encoding="utf-8")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: status("second") == 200)
        assert status("first") == 401

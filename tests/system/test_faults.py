"""Engine crashes, disconnects and slow clients harm no other request."""

import asyncio
import os
import random
import signal
import socket
import threading
import time
from typing import Any

import httpx
import pytest

from chairlift.engine.runner.fake_model import FakeConfig
from support_faults import LONG_REQUEST, SLOW_ENGINE, post_bytes, run_streams_during
from support_process import TIMEOUT_SECONDS, has_ended, wait_until
from support_server import CHAT, COMPLETIONS, HELLO, Server, events, fake_server, run


def check_recovered(server: Server) -> None:
    wait_until(lambda: httpx.get(server.url + "/readyz").status_code == 200)
    response = httpx.post(server.url + CHAT, json=HELLO, timeout=TIMEOUT_SECONDS)
    assert response.status_code == 200, response.text
    wait_until(server.is_idle)


def check_engine_dead_errors(results: list[tuple[int, str]]) -> None:
    for status, text in results:
        assert status == 200 and "[DONE]" not in text
        event, data = events(text)[-1]
        assert event == "error" and data["error"]["code"] == "engine_dead" and data["error"]["type"] == "server_error"


@pytest.mark.parametrize(("number", "watch"), [
    (signal.SIGKILL, {}), (signal.SIGSTOP, {"heartbeat_timeout": 3.0}),
], ids=["killed", "hangs"])  # fmt: skip
def test_an_engine_that_is_gone_under_streams(number: int, watch: dict[str, float]) -> None:
    # The next engine takes long enough to start that the server is seen to be not ready.
    with fake_server(SLOW_ENGINE, admin=True, factory="slow_start", watch=watch) as server:
        num_files, pid = server.open_files, server.engine_pid
        statuses: list[int] = []

        def inject_fault() -> None:
            os.kill(pid, number)
            wait_until(lambda: statuses.append(httpx.get(server.url + "/readyz").status_code) or statuses[-1] == 503)

        check_engine_dead_errors(run(run_streams_during(server, inject_fault)))
        check_recovered(server)
        assert server.engine_pid != pid and server.metric("engine_restarts_total") >= 0
        wait_until(lambda: server.metric("engine_restarts_total") == 1)
        wait_until(lambda: server.open_files <= num_files + 2)
        assert server.stop() == 0


def test_plain_requests_get_503_when_the_engine_dies() -> None:
    with fake_server(SLOW_ENGINE, admin=True) as server:
        responses: list[httpx.Response] = []

        def send() -> None:
            responses.append(httpx.post(server.url + COMPLETIONS, json=LONG_REQUEST, timeout=TIMEOUT_SECONDS))

        threads = [threading.Thread(target=send) for _ in range(8)]
        for thread in threads:
            thread.start()
        wait_until(lambda: server.state()["scheduler"]["active_requests"] == 8)
        os.kill(server.engine_pid, signal.SIGKILL)
        for thread in threads:
            thread.join(TIMEOUT_SECONDS)
        assert [response.status_code for response in responses] == [503] * 8
        assert all(int(response.headers["retry-after"]) >= 1 for response in responses)
        assert "exit code" not in responses[0].text and "request req-" in responses[0].text
        check_recovered(server)


def test_an_idle_engine_that_dies_is_back_by_itself() -> None:
    with fake_server(admin=True) as server:
        pid = server.engine_pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: server.engine_pid != pid)
        check_recovered(server)


def test_an_engine_that_dies_for_good_ends_the_server() -> None:
    with fake_server(watch={"max_restarts": 1, "restart_period": 300}) as server:
        pid = server.engine_pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: server.engine_pid != pid)
        wait_until(lambda: httpx.get(server.url + "/readyz").status_code == 200)
        os.kill(server.engine_pid, signal.SIGKILL)
        assert server.wait_for_exit() == 1 and "is not restarted again" in server.log


def test_an_engine_leaves_when_its_server_is_killed() -> None:
    with fake_server(SLOW_ENGINE) as server:
        pid = server.engine_pid
        server.process.kill()
        server.wait_for_exit()
        wait_until(lambda: has_ended(pid))


# -- clients -----------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_clients_that_leave_at_any_moment_free_everything() -> None:
    config = FakeConfig(vocab_size=128, max_model_len=512, num_blocks=8192, seconds_per_step=0.005, verify=False)
    with fake_server(config, admin=True, scheduler={"max_running_requests": 16}) as server:
        num_files, rng = server.open_files, random.Random(7)
        run(_disconnect_often(server, rng, 1000))
        while server.metric("requests_aborted_total") <= 100:  # a loaded machine had too few of them when they left
            run(_disconnect_often(server, rng, 200, stay=1.0))
        wait_until(server.is_idle)
        assert httpx.post(server.url + CHAT, json=HELLO).status_code == 200
        wait_until(lambda: server.open_files <= num_files + 2)
        wait_until(lambda: server.metric("requests_open") == server.metric("admission_waiting_requests") == 0)


async def _disconnect_often(server: Server, rng: random.Random, times: int, stay: float = 0.08) -> None:
    """Send requests of all kinds and close their connections at random moments within `stay` s, a few at once."""
    semaphore = asyncio.Semaphore(50)

    async def send_one(seed: int) -> None:
        data = post_bytes({**LONG_REQUEST, "seed": seed, "stream": rng.random() < 0.5, "n": rng.choice([1, 1, 4])})
        cut = rng.randrange(len(data)) if rng.random() < 0.1 else len(data)
        async with semaphore:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(data[:cut])
            await asyncio.sleep(rng.random() * stay)
            if rng.random() < 0.3:
                writer.write_eof()  # and leaves soon
                await asyncio.wait_for(reader.read(), TIMEOUT_SECONDS)
            elif rng.random() < 0.5:
                writer.transport.abort()  # with a reset
            writer.close()

    await asyncio.gather(*[send_one(seed) for seed in range(times)])


@pytest.mark.share(1)
@pytest.mark.parametrize("body", [
    LONG_REQUEST, {**LONG_REQUEST, "stream": True}, {**LONG_REQUEST, "n": 4},
    {**LONG_REQUEST, "prompt": ["a", "b", "c"]},
], ids=["plain", "stream", "choices", "prompts"])  # fmt: skip
def test_a_client_that_leaves_is_aborted(body: dict[str, Any]) -> None:
    with fake_server(SLOW_ENGINE, admin=True) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as client_socket:
            client_socket.sendall(post_bytes(body))
            wait_until(lambda: server.state()["scheduler"]["active_requests"] > 0)
        steps = server.state()["scheduler"]["steps"]
        wait_until(server.is_idle)
        assert server.state()["scheduler"]["steps"] < steps + 100  # of the 500 steps that the request needs
        assert server.metric("requests_aborted_total") == 1


@pytest.mark.full
def test_slow_readers_are_dropped_and_delay_no_other_request() -> None:
    config = FakeConfig(vocab_size=128, max_model_len=8192, num_blocks=65_536, verify=False)
    with fake_server(config, admin=True, server={"write_timeout": 1.0}) as server:
        body = {**LONG_REQUEST, "max_tokens": 8000, "stream": True, "logprobs": 5, "return_token_ids": True}
        sockets = []
        for _ in range(50):
            client_socket = socket.socket()
            client_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client_socket.connect(("127.0.0.1", server.port))
            client_socket.sendall(post_bytes(body))
            sockets.append(client_socket)
        try:
            response = httpx.post(server.url + CHAT, json=HELLO, timeout=TIMEOUT_SECONDS)
            assert response.status_code == 200
            wait_until(server.is_idle)
            wait_until(lambda: server.metric("requests_aborted_total") == 50)
        finally:
            for client_socket in sockets:
                client_socket.close()


@pytest.mark.full
def test_a_server_that_sleeps_while_its_engine_races_loses_nothing() -> None:
    """A server that reads outputs late must not lose requests of its fast engine."""
    config = FakeConfig(vocab_size=128, max_model_len=8192, num_blocks=65_536, verify=False)
    with fake_server(config, admin=True) as server:
        body = {**LONG_REQUEST, "max_tokens": 8000, "ignore_eos": True, "return_token_ids": True}
        responses: list[httpx.Response] = []

        def send() -> None:
            responses.append(httpx.post(server.url + COMPLETIONS, json=body, timeout=TIMEOUT_SECONDS))

        threads = [threading.Thread(target=send) for _ in range(50)]
        for thread in threads:
            thread.start()
        wait_until(lambda: server.state()["scheduler"]["active_requests"] == 50)
        os.kill(server.process.pid, signal.SIGSTOP)
        time.sleep(2.0)
        os.kill(server.process.pid, signal.SIGCONT)
        for thread in threads:
            thread.join(TIMEOUT_SECONDS)
        assert [response.status_code for response in responses] == [200] * 50, server.log
        tokens = [response.json()["choices"][0]["token_ids"] for response in responses]
        assert len(tokens[0]) == 8000 and all(each == tokens[0] for each in tokens)
        assert server.metric("engine_restarts_total") == 0

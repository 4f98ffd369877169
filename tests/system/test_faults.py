"""Faults of one replica: a crash, hang, disconnect or slow client harms no other request, and the server recovers."""

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from chairlift.engine.runner.fake import FakeConfig
from chairlift.web.auth import key_line
from support_process import PATIENCE, wait_until
from support_server import CHAT, COMPLETIONS, HELLO, Server, events, fake_server, real_server, run, starting_server

STREAMS = 200
SLOW = FakeConfig(vocab_size=128, max_model_len=512, num_blocks=8192, seconds_per_step=0.02, verify=False)
LONG: dict[str, Any] = {"model": "fake", "prompt": "hello", "max_tokens": 500, "seed": 1}


async def stream(http: httpx.AsyncClient, body: dict[str, Any], begun: Callable[[], None]) -> tuple[int, str]:
    """Read a stream to its end, however that is; returns its status and all that came."""
    text, first = "", True
    async with http.stream("POST", COMPLETIONS, json={**body, "stream": True}) as response:
        try:
            async for piece in response.aiter_text():
                text += piece
                if first:
                    first = False
                    begun()
        except httpx.RemoteProtocolError:
            pass
        return response.status_code, text


def client(server: Server) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=server.url, limits=limits, timeout=PATIENCE)


async def under_streams(server: Server, harm: Callable[[], None]) -> list[tuple[int, str]]:
    """Open STREAMS streams, wait until each has begun, do harm, and return how each ended."""
    begun: list[int] = []
    async with client(server) as http:
        tasks = [
            asyncio.create_task(stream(http, {**LONG, "seed": seed}, lambda: begun.append(1)))
            for seed in range(STREAMS)
        ]
        while len(begun) < STREAMS:
            await asyncio.sleep(0.02)
        await asyncio.to_thread(harm)
        return await asyncio.gather(*tasks)


def came_back(server: Server) -> None:
    wait_until(lambda: httpx.get(server.url + "/readyz").status_code == 200)
    response = httpx.post(server.url + CHAT, json=HELLO, timeout=PATIENCE)
    assert response.status_code == 200, response.text
    wait_until(server.is_idle)


def all_ended_with_an_error(ends: list[tuple[int, str]]) -> None:
    for status, text in ends:
        assert status == 200 and "[DONE]" not in text
        kind, data = events(text)[-1]
        assert kind == "error" and data["error"]["code"] == "engine_dead" and data["error"]["type"] == "server_error"


@pytest.mark.parametrize(("number", "watch"), [
    (signal.SIGKILL, {}), (signal.SIGSTOP, {"heartbeat_timeout": 1.0}),
], ids=["killed", "hangs"])  # fmt: skip
def test_an_engine_that_is_gone_under_streams(number: int, watch: dict[str, float]) -> None:
    with fake_server(SLOW, admin=True, watch=watch) as server:
        files, pid = server.open_files, server.engine_pid
        seen: list[int] = []

        def harm() -> None:
            os.kill(pid, number)
            wait_until(lambda: seen.append(httpx.get(server.url + "/readyz").status_code) or seen[-1] == 503)

        all_ended_with_an_error(run(under_streams(server, harm)))
        came_back(server)
        assert server.engine_pid != pid and server.metric("engine_restarts_total") >= 0
        wait_until(lambda: server.metric("engine_restarts_total") == 1)
        wait_until(lambda: server.open_files <= files + 2)
        assert server.stop() == 0


def test_plain_requests_get_503_when_the_engine_dies() -> None:
    with fake_server(SLOW, admin=True) as server:
        responses: list[httpx.Response] = []

        def ask() -> None:
            responses.append(httpx.post(server.url + COMPLETIONS, json=LONG, timeout=PATIENCE))

        askers = [threading.Thread(target=ask) for _ in range(8)]
        for each in askers:
            each.start()
        wait_until(lambda: server.state()["scheduler"]["active_requests"] == 8)
        os.kill(server.engine_pid, signal.SIGKILL)
        for each in askers:
            each.join(PATIENCE)
        assert [response.status_code for response in responses] == [503] * 8
        assert all(int(response.headers["retry-after"]) >= 1 for response in responses)
        assert "exit code" not in responses[0].text and "request req-" in responses[0].text
        came_back(server)


def test_an_idle_engine_that_dies_is_back_by_itself() -> None:
    with fake_server(admin=True) as server:
        pid = server.engine_pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: server.engine_pid != pid)
        came_back(server)


def test_an_engine_that_dies_for_good_ends_the_server() -> None:
    with fake_server(watch={"max_restarts": 1, "restart_period": 300}) as server:
        pid = server.engine_pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: server.engine_pid != pid)
        wait_until(lambda: httpx.get(server.url + "/readyz").status_code == 200)
        os.kill(server.engine_pid, signal.SIGKILL)
        assert server.left() == 1 and "for good" in server.said


def test_an_engine_leaves_when_its_server_is_killed() -> None:
    with fake_server(SLOW) as server:
        pid = server.engine_pid
        server.process.kill()
        server.left()
        wait_until(lambda: not _lives(pid))


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# -- clients -----------------------------------------------------------------------------------------------------------


def test_clients_that_leave_at_any_moment_free_everything() -> None:
    config = FakeConfig(vocab_size=128, max_model_len=512, num_blocks=8192, seconds_per_step=0.005, verify=False)
    with fake_server(config, admin=True, scheduler={"max_running_requests": 16}) as server:
        files, dice = server.open_files, random.Random(7)
        run(_leave_often(server, dice, 1000))
        wait_until(server.is_idle)
        assert httpx.post(server.url + CHAT, json=HELLO).status_code == 200
        wait_until(lambda: server.open_files <= files + 2)
        assert server.metric("aborts_total") > 100
        wait_until(lambda: server.metric("open_requests") == server.metric("waiting_requests") == 0)


async def _leave_often(server: Server, dice: random.Random, times: int) -> None:
    """Send requests of all kinds and close their connections at random moments, a few at once."""
    gate = asyncio.Semaphore(50)

    async def one(seed: int) -> None:
        kind = {**LONG, "seed": seed, "stream": dice.random() < 0.5, "n": dice.choice([1, 1, 4])}
        body = json.dumps(kind).encode()
        asked = b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (COMPLETIONS.encode(), len(body), body)
        cut = dice.randrange(len(asked)) if dice.random() < 0.1 else len(asked)
        async with gate:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(asked[:cut])
            await asyncio.sleep(dice.random() * 0.08)
            if dice.random() < 0.3:
                writer.write_eof()  # a half-closed connection counts as gone, too
                await asyncio.wait_for(reader.read(), PATIENCE)
            elif dice.random() < 0.5:
                writer.transport.abort()  # with a reset
            writer.close()

    await asyncio.gather(*[one(seed) for seed in range(times)])


@pytest.mark.parametrize("body", [
    LONG, {**LONG, "stream": True}, {**LONG, "n": 4}, {**LONG, "prompt": ["a", "b", "c"]},
], ids=["plain", "stream", "choices", "prompts"])  # fmt: skip
def test_a_client_that_leaves_is_aborted(body: dict[str, Any]) -> None:
    with fake_server(SLOW, admin=True) as server:
        sent = json.dumps(body).encode()
        with socket.create_connection(("127.0.0.1", server.port)) as peer:
            peer.sendall(
                b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (COMPLETIONS.encode(), len(sent), sent)
            )
            wait_until(lambda: server.state()["scheduler"]["active_requests"] > 0)
        steps = server.state()["scheduler"]["steps"]
        wait_until(server.is_idle)
        assert server.state()["scheduler"]["steps"] < steps + 100  # of the 500 that it had asked for
        assert server.metric("aborts_total") == 1


def test_slow_readers_are_dropped_and_delay_no_other_request() -> None:
    config = FakeConfig(vocab_size=128, max_model_len=8192, num_blocks=65_536, verify=False)
    with fake_server(config, admin=True, server={"write_timeout": 1.0}) as server:
        body = json.dumps(
            {**LONG, "max_tokens": 8000, "stream": True, "logprobs": 5, "return_token_ids": True}
        ).encode()
        slow = []
        for _ in range(50):
            peer = socket.socket()
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.connect(("127.0.0.1", server.port))
            peer.sendall(
                b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (COMPLETIONS.encode(), len(body), body)
            )
            slow.append(peer)
        try:
            response = httpx.post(server.url + CHAT, json=HELLO, timeout=PATIENCE)
            assert response.status_code == 200
            wait_until(server.is_idle)
            wait_until(lambda: server.metric("aborts_total") == 50)
        finally:
            for peer in slow:
                peer.close()


def test_a_server_that_sleeps_while_its_engine_races_loses_nothing() -> None:
    """A fast engine must not run away from who reads it, and then drop it, and every request with it."""
    config = FakeConfig(vocab_size=128, max_model_len=8192, num_blocks=65_536, verify=False)
    with fake_server(config, admin=True) as server:
        body = {**LONG, "max_tokens": 8000, "ignore_eos": True, "return_token_ids": True}
        responses: list[httpx.Response] = []

        def ask() -> None:
            responses.append(httpx.post(server.url + COMPLETIONS, json=body, timeout=PATIENCE))

        askers = [threading.Thread(target=ask) for _ in range(50)]
        for each in askers:
            each.start()
        wait_until(lambda: server.state()["scheduler"]["active_requests"] == 50)
        os.kill(server.process.pid, signal.SIGSTOP)
        time.sleep(2.0)
        os.kill(server.process.pid, signal.SIGCONT)
        for each in askers:
            each.join(PATIENCE)
        assert [response.status_code for response in responses] == [200] * 50, server.said
        tokens = [response.json()["choices"][0]["token_ids"] for response in responses]
        assert len(tokens[0]) == 8000 and all(each == tokens[0] for each in tokens)
        assert server.metric("engine_restarts_total") == 0


# -- leaving -----------------------------------------------------------------------------------------------------------


def test_sigterm_lets_open_requests_finish_and_refuses_new_ones() -> None:
    with fake_server(SLOW, server={"drain_timeout": 30.0}) as server:
        refusals: list[httpx.Response] = []

        def harm() -> None:
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: httpx.get(server.url + "/readyz").status_code == 503)
            refusals.append(httpx.post(server.url + CHAT, json=HELLO))

        ends = run(under_streams(server, harm))
        assert [status for status, _ in ends] == [200] * STREAMS
        assert all(text.endswith("data: [DONE]\n\n") for _, text in ends)
        assert all(events(text)[-2]["choices"][0]["finish_reason"] == "length" for _, text in ends)
        assert refusals[0].status_code == 503 and refusals[0].headers["connection"] == "close"
        assert refusals[0].json()["error"]["code"] == "draining" and "retry-after" in refusals[0].headers
        assert server.left() == 0 and "gone" in server.said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_ends_what_is_open(number: int) -> None:
    with fake_server(SLOW, server={"drain_timeout": 60.0}) as server:

        def harm() -> None:
            server.process.send_signal(number)
            time.sleep(0.3)
            server.process.send_signal(number)

        ends = run(under_streams(server, harm))
        assert all(events(text)[-2]["choices"][0]["finish_reason"] == "abort" for _, text in ends)
        assert server.left() == 0


def test_what_does_not_finish_in_time_is_aborted() -> None:
    with fake_server(SLOW, server={"drain_timeout": 0.5}) as server:
        ends = run(under_streams(server, lambda: server.process.send_signal(signal.SIGTERM)))
        assert all(events(text)[-2]["choices"][0]["finish_reason"] == "abort" for _, text in ends)
        assert server.left() == 0


def test_an_operator_can_drain_it() -> None:
    with fake_server(admin=True) as server:
        response = httpx.post(server.url + "/admin/drain", headers={"authorization": "Bearer the-admin-key"})
        assert response.status_code == 202
        assert server.left() == 0


def test_a_signal_behind_a_drain_still_lets_open_requests_finish() -> None:
    """Kubernetes' preStop hook drains, and SIGTERM follows; the second signal alone means now."""
    with fake_server(SLOW, admin=True, server={"drain_timeout": 60.0}) as server:

        def harm() -> None:
            drained = httpx.post(server.url + "/admin/drain", headers={"authorization": "Bearer the-admin-key"})
            assert drained.status_code == 202
            server.process.send_signal(signal.SIGTERM)

        ends = run(under_streams(server, harm))
        assert all(events(text)[-2]["choices"][0]["finish_reason"] == "length" for _, text in ends)
        assert server.left() == 0


def test_aborts_are_waited_for_where_a_step_is_long() -> None:
    slow = FakeConfig(vocab_size=128, max_model_len=512, num_blocks=512, seconds_per_step=1.0, verify=False)
    with fake_server(slow, server={"drain_timeout": 0.0}) as server:
        begun: list[int] = []

        async def run_streams() -> list[tuple[int, str]]:
            async with client(server) as http:
                tasks = [asyncio.create_task(stream(http, LONG, lambda: begun.append(1))) for _ in range(3)]
                while len(begun) < 3:
                    await asyncio.sleep(0.02)
                server.process.send_signal(signal.SIGTERM)
                return await asyncio.gather(*tasks)

        ends = run(run_streams())
        assert all(text.endswith("data: [DONE]\n\n") for _, text in ends)
        assert all(events(text)[-2]["choices"][0]["finish_reason"] == "abort" for _, text in ends)
        assert server.left() == 0


def test_sighup_reads_the_keys_again(tmp_path: Any) -> None:
    file = tmp_path / "keys.txt"
    file.write_text(key_line("first", "alice") + "\n", encoding="utf-8")
    with fake_server(keys=str(file)) as server:

        def status(key: str) -> int:
            return httpx.get(server.url + "/v1/models", headers={"authorization": f"Bearer {key}"}).status_code

        assert (status("first"), status("second")) == (200, 401)
        file.write_text("nonsense\n", encoding="utf-8")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "the old keys" in server.said)
        assert (status("first"), status("second")) == (200, 401)
        file.write_text(key_line("second", "alice") + "\n", encoding="utf-8")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: status("second") == 200)
        assert status("first") == 401


# -- starting ----------------------------------------------------------------------------------------------------------


def test_while_the_server_starts_requests_get_a_retry_after() -> None:
    with starting_server(factory="slow_start") as server:
        wait_until(lambda: server.url != "")
        assert httpx.get(server.url + "/livez").status_code == 200
        ready = httpx.get(server.url + "/readyz")
        response = httpx.post(server.url + CHAT, json=HELLO)
        assert ready.status_code == 503 and response.status_code == 503
        assert response.json()["error"]["code"] == "starting" and int(response.headers["retry-after"]) >= 1
        server.wait()
        assert httpx.post(server.url + CHAT, json=HELLO).status_code == 200


def test_it_can_be_stopped_while_it_starts() -> None:
    with starting_server(factory="slow_start") as server:
        wait_until(lambda: server.url != "")
        assert server.stop() == 0


def test_a_port_that_is_in_use() -> None:
    with fake_server() as server, starting_server(port=server.port) as other:
        assert other.left() != 0
        assert f"cannot listen on 127.0.0.1 port {server.port}" in other.said


def test_a_model_that_cannot_be_loaded() -> None:
    with starting_server(factory="no_model") as server:
        assert server.left() != 0
        assert "model.safetensors is truncated" in server.said


# -- logs --------------------------------------------------------------------------------------------------------------

TINY = ("chairlift:random", "--num-blocks", "256", "--log-level", "info")


def test_a_pipe_that_is_not_read_blocks_no_request() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "chairlift", "serve", *TINY, "--port", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, timeout=PATIENCE) as http:
            wait_until(lambda: _status(http, "/readyz") == 200)
            for number in range(2000):  # each is a line of the access log; the pipe has room for some hundreds
                assert http.get(f"/v1/models/{'x' * 150}{number}").status_code == 404
            assert http.get("/v1/models").status_code == 200
        process.terminate()
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.communicate()


def _status(http: httpx.Client, path: str) -> int:
    try:
        return http.get(path).status_code
    except httpx.ConnectError:
        return 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no disk that is always full")
def test_a_full_disk_for_the_log_blocks_no_request(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to("/dev/full")
    with real_server(*TINY, "--log-file", str(tmp_path / "log"), "--log-file-size", "0") as server:
        for _ in range(100):
            assert httpx.get(server.url + "/v1/models").status_code == 200
        assert server.stop() == 0
    assert server.said.count("cannot be written") == 1

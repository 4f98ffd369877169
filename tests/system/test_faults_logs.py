"""Logs that cannot be written: an unread pipe or a full disk blocks no request."""

import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from support_process import TIMEOUT_SECONDS, wait_until
from support_server import real_server

TINY = ("chairlift:random", "--num-blocks", "256", "--log-level", "info")


@pytest.mark.full
def test_a_pipe_that_is_not_read_blocks_no_request() -> None:
    with socket.socket() as free_socket:
        free_socket.bind(("127.0.0.1", 0))
        port = free_socket.getsockname()[1]
    command = [sys.executable, "-m", "chairlift", "serve", *TINY, "--port", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, timeout=TIMEOUT_SECONDS) as http:
            wait_until(lambda: _status(http, "/readyz") == 200)
            for number in range(200):  # each is a line of the access log, all of them four times what the pipe holds
                assert http.get(f"/v1/models/{'x' * 1500}{number}").status_code == 404
            assert http.get("/v1/models").status_code == 200
        process.terminate()
        assert process.wait(TIMEOUT_SECONDS) == 0
    finally:
        process.kill()
        process.communicate()


def _status(http: httpx.Client, path: str) -> int:
    try:
        return http.get(path).status_code
    except httpx.ConnectError:
        return 0


@pytest.mark.full
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no disk that is always full")
def test_a_full_disk_for_the_log_blocks_no_request(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to("/dev/full")
    with real_server(*TINY, "--log-file", str(tmp_path / "log"), "--log-file-size", "0") as server:
        for _ in range(100):
            assert httpx.get(server.url + "/v1/models").status_code == 200
        assert server.stop() == 0
    assert server.log.count("cannot write the log file") == 1

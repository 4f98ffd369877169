"""`chairlift serve`: its settings reach the server, and invalid ones are one sentence."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from chairlift.cli.commands.serve import _model_display_name
from chairlift.web.auth import key_line
from support_process import wait_until
from support_server import CHAT, real_server

TINY = ("--num-blocks", "256", "--max-running-requests", "4")


def run_command(*words: str) -> tuple[int, str]:
    """Run a command that ends by itself; returns its exit code and output."""
    completed = subprocess.run(
        [sys.executable, "-m", "chairlift", *words], capture_output=True, text=True, timeout=120, check=False
    )
    return completed.returncode, completed.stdout + completed.stderr


@pytest.mark.parametrize(("words", "sentence"), [
    (["--max-queue-size", "5"], "--max-queue-size is 5 sequences, less than --max-waiting-requests (1024)"),
    (["--host", "0.0.0.0"], "--host 0.0.0.0 is not a loopback address and needs API keys"),
    (["--host", "::"], "needs API keys"),
    (["--port", "65536"], "--port must be between 0 and 65535, got 65536"),
    (["--port", "x"], "--port must be an integer, got 'x'"),
    (["--tls-cert", "a.pem"], "--tls-cert needs --tls-key, too"),
    (["--key-file", "nowhere.txt"], "cannot read the keys in nowhere.txt"),
    (["--metric-alias", "nagios"], "--metric-alias must be one of vllm, transformers, got 'nagios'"),
    (["--write-timeout", "0"], "--write-timeout must be a positive number of seconds, got 0"),
    (["--frobnicate"], "unknown option --frobnicate; `chairlift serve --help` lists the options"),
    (["nowhere/at-all", "--port", "0"], "nowhere/at-all"),
    (["a", "b"], "unexpected argument 'b': the command takes one MODEL"),
])  # fmt: skip
def test_invalid_input_is_one_sentence_and_exit_code_two(words: list[str], sentence: str) -> None:
    code, output = run_command("serve", *words)
    assert code == 2 and sentence in output and "Traceback" not in output


def test_a_real_server_prints_its_phases_and_serves_its_names() -> None:
    names = ("--served-model-name", "toy", "--served-model-name", "other")
    with real_server(*TINY, *names, CHAIRLIFT_MAX_MODEL_LEN="300") as server:
        cards = httpx.get(server.url + "/v1/models").json()["data"]
        assert [card["id"] for card in cards] == ["toy", "other"] and cards[0]["max_model_len"] == 300
        body = {"model": "other", "messages": [{"role": "user", "content": "Hello!"}]}
        response = httpx.post(server.url + CHAT, json=body, timeout=60)
        assert response.status_code == 200 and response.json()["model"] == "other"
        assert httpx.post(server.url + CHAT, json={**body, "model": "chairlift:demo"}).status_code == 404
        assert server.stop() == 0
    assert server.lines[0].startswith("no model given: the embedded demo model")
    for word in ("listening on http://127.0.0.1:", "  dtype", "  seconds to load", "ready after ", "stopped"):
        assert any(line.startswith(word) for line in server.lines), server.log


def test_keys_of_the_environment() -> None:
    with real_server(*TINY, "chairlift:random", CHAIRLIFT_API_KEY="k", CHAIRLIFT_ADMIN_KEY="a") as server:
        assert httpx.get(server.url + "/v1/models").status_code == 401
        assert httpx.get(server.url + "/v1/models", headers={"authorization": "Bearer k"}).status_code == 200
        assert httpx.get(server.url + "/admin/state", headers={"authorization": "Bearer a"}).status_code == 200


def test_a_pipe_in_place_of_the_key_file_is_rejected_and_the_old_keys_stay(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text(key_line("k", "alice") + "\n", encoding="utf-8")
    with real_server(*TINY, "chairlift:random", "--key-file", str(file)) as server:
        file.unlink()
        os.mkfifo(file)
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "is not a regular file, so it cannot be read again" in server.log)
        assert httpx.get(server.url + "/v1/models", headers={"authorization": "Bearer k"}).status_code == 200
        assert "Traceback" not in server.log and "were read again" not in server.log


@pytest.mark.parametrize(
    ("model", "name"), [("chairlift:demo", "chairlift:demo"), ("owner/name", "owner/name"), (".", None)]
)
def test_the_default_name_of_a_model(model: str, name: str | None) -> None:
    displayed = _model_display_name(model)
    assert displayed == name if name is not None else "/" not in displayed and displayed

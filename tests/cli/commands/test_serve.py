"""`chairlift serve`: its options reach the parts they belong to; what cannot be is told before a model is loaded."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from chairlift.cli.commands.serve import _name
from chairlift.web.auth import key_line
from support_process import wait_until
from support_server import CHAT, real_server

TINY = ("--num-blocks", "256", "--max-running-requests", "4")


def said(*words: str) -> tuple[int, str]:
    """Run a command that ends by itself; returns its exit code and what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "chairlift", *words], capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(("words", "sentence"), [
    (["--host", "0.0.0.0"], "keys are needed"),
    (["--host", "::"], "keys are needed"),
    (["--port", "65536"], "port must be between 0 and 65535"),
    (["--port", "x"], "--port"),
    (["--tls-cert", "a.pem"], "--tls-cert and --tls-key go together"),
    (["--key-file", "nowhere.txt"], "cannot read the keys in nowhere.txt"),
    (["--metric-alias", "nagios"], "--metric-alias"),
    (["--write-timeout", "0"], "write_timeout must be a positive number"),
    (["--frobnicate"], "frobnicate"),
    (["nowhere/at-all", "--port", "0"], "nowhere/at-all"),
    (["a", "b"], "there is one MODEL"),
])  # fmt: skip
def test_what_cannot_be_is_one_sentence_and_exit_code_two(words: list[str], sentence: str) -> None:
    code, told = said("serve", *words)
    assert code == 2 and sentence in told and "Traceback" not in told


def test_a_real_server_says_its_phases_and_serves_under_its_names() -> None:
    names = ("--served-model-name", "toy", "--served-model-name", "other")
    with real_server(*TINY, *names, CHAIRLIFT_MAX_MODEL_LEN="300") as server:
        cards = httpx.get(server.url + "/v1/models").json()["data"]
        assert [card["id"] for card in cards] == ["toy", "other"] and cards[0]["max_model_len"] == 300
        body = {"model": "other", "messages": [{"role": "user", "content": "Hello!"}]}
        answer = httpx.post(server.url + CHAT, json=body, timeout=60)
        assert answer.status_code == 200 and answer.json()["model"] == "other"
        assert httpx.post(server.url + CHAT, json={**body, "model": "chairlift:demo"}).status_code == 404
        assert server.stop() == 0
    assert server.lines[0].startswith("no model given: the embedded demo model")
    for word in ("listening on http://127.0.0.1:", "  dtype", "  seconds to load", "ready after ", "gone"):
        assert any(line.startswith(word) for line in server.lines), server.said


def test_keys_of_the_environment() -> None:
    with real_server(*TINY, "chairlift:random", CHAIRLIFT_API_KEY="k", CHAIRLIFT_ADMIN_KEY="a") as server:
        assert httpx.get(server.url + "/v1/models").status_code == 401
        assert httpx.get(server.url + "/v1/models", headers={"authorization": "Bearer k"}).status_code == 200
        assert httpx.get(server.url + "/admin/state", headers={"authorization": "Bearer a"}).status_code == 200


def test_a_pipe_in_the_place_of_the_key_file_stops_nobody(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text(key_line("k", "alice") + "\n", encoding="utf-8")
    with real_server(*TINY, "chairlift:random", "--key-file", str(file)) as server:
        file.unlink()
        os.mkfifo(file)
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "is no file, and so cannot be read again" in server.said)
        assert httpx.get(server.url + "/v1/models", headers={"authorization": "Bearer k"}).status_code == 200
        assert "Traceback" not in server.said and "were read again" not in server.said


@pytest.mark.parametrize(
    ("model", "name"), [("chairlift:demo", "chairlift:demo"), ("owner/name", "owner/name"), (".", None)]
)
def test_how_a_model_is_called(model: str, name: str | None) -> None:
    found = _name(model)
    assert found == name if name is not None else "/" not in found and found

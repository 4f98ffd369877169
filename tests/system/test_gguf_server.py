"""A server of a GGUF file: its names, chats that end at their turn, tokens, a start that is refused."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support_gguf import smollm2_file
from support_gguf_models import write_gguf
from support_server import Server, real_server

GERMANY = [{"role": "user", "content": "What is the capital of Germany?"}]
"""Of the tokens of its answer each is far more probable than any other: rounding does not change them."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with real_server(str(smollm2_file()), "--num-blocks", "512", "--max-running-requests", "4") as running:
        yield running


def test_a_chat_ends_at_its_turn_under_every_name(server: Server) -> None:
    for name in ("", smollm2_file().name, str(smollm2_file())):
        body = {"messages": GERMANY, "temperature": 0, "max_tokens": 40, "model": name}
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()
        choice = answer["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("The capital of Germany is Berlin.", "stop")
        assert answer["usage"]["prompt_tokens"] == 37, "the beginning of text is not there twice"
    assert [each["id"] for each in httpx.get(f"{server.url}/v1/models").json()["data"]] == [smollm2_file().name]


def test_tokens_are_those_of_the_file(server: Server) -> None:
    found = httpx.post(f"{server.url}/tokenize", json={"prompt": "Hello, world!"}, timeout=60).json()
    assert found["tokens"] == [19556, 28, 905, 17]


def test_a_file_without_a_tokenizer_that_can_be_read_is_refused_with_the_remedy(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", "llama", lambda _: "Q8_0", tokens=lambda writer: writer.add_tokenizer_model("rwkv"))
    command = [sys.executable, "-m", "chairlift", "serve", str(tmp_path / "a.gguf"), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert "a.gguf" in done.stderr and "rwkv" in done.stderr and "--tokenizer" in done.stderr

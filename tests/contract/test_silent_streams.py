"""The clients of OpenAI, Anthropic and Ollama read streams that are silent, directly and through a router."""

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest

from support_router_process import direct_or_routed
from support_server import Server, scripted_model_server

MODEL, ANSWER, REASONING = "scripted", "It is sunny in Paris.", "A cat has 4 legs.\n2 times 4 is 8."
PARIS: Any = [{"role": "user", "content": "sunny in Paris"}]
CATS: Any = [{"role": "user", "content": "How many legs have two cats?"}]


@pytest.fixture(scope="module")
def replica() -> Iterator[Server]:
    """Every token takes several times as long as a stream may be silent."""
    with scripted_model_server(fake={"seconds_per_step": 0.05}, server={"sse_ping_interval": 0.01}) as server:
        yield server


@pytest.fixture(scope="module", params=["direct", "router"])
def url(request: pytest.FixtureRequest, replica: Server) -> Iterator[str]:
    with direct_or_routed(request.param, replica, options=("--sse-ping-interval", "0.01")) as server:
        yield server.url


@pytest.mark.parametrize(
    ("path", "messages", "sign"),
    [
        ("/v1/chat/completions", "messages", b": waiting\n\n"),
        ("/v1/messages", "messages", b'event: ping\ndata: {"type":"ping"}\n\n'),
        ("/v1/responses", "input", b"event: response.in_progress\n"),
        ("/api/chat", "messages", b'"message":{"role":"assistant","content":""}}\n'),
    ],
)
def test_the_streams_of_this_server_are_silent(url: str, path: str, messages: str, sign: bytes) -> None:
    body = {"model": MODEL, messages: PARIS, "stream": True} | ({"max_tokens": 99} if path == "/v1/messages" else {})
    content = httpx.post(url + path, json=body, timeout=60).content
    assert content.count(sign) >= 3, content


def test_openai_chat(url: str) -> None:
    with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=60) as client:
        chunks = list(client.chat.completions.create(model=MODEL, messages=PARIS, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER
        with client.chat.completions.stream(model=MODEL, messages=PARIS) as stream:
            assert stream.get_final_completion().choices[0].message.content == ANSWER


def test_openai_responses(url: str) -> None:
    with (
        openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=60) as client,
        client.responses.stream(model=MODEL, input=CATS) as stream,
    ):
        kinds = [event.type for event in stream]
        response = stream.get_final_response()
    assert response.output_text == "Eight." and response.status == "completed"
    assert kinds[:3] == ["response.created", "response.in_progress", "response.in_progress"]
    assert "response.in_progress" not in kinds[kinds.index("response.output_item.added") :]


def test_anthropic(url: str) -> None:
    with (
        anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60) as client,
        client.messages.stream(model=MODEL, max_tokens=300, messages=CATS) as stream,
    ):
        thinking, text = stream.get_final_message().content
    assert thinking.type == "thinking" and thinking.thinking.strip() == REASONING
    assert text.type == "text" and text.text == "Eight."


def test_ollama(url: str) -> None:
    client = ollama.Client(url, timeout=60)
    parts = list(client.chat(MODEL, PARIS, stream=True))
    assert "".join(part.message.content or "" for part in parts) == ANSWER and parts[-1].done
    texts = [part.response for part in client.generate(MODEL, "sunny in Paris", stream=True)]
    assert "".join(texts) == ANSWER and texts.count("") > 3


@pytest.mark.full
def test_a_router_waits_for_a_prompt_that_takes_longer_than_its_limit_of_the_first_token() -> None:
    limits = ("--sse-ping-interval", "0.05", "--first-token-timeout", "1", "--inter-token-timeout", "1")
    with (
        scripted_model_server(fake={"seconds_per_step": 2.5}, server={"sse_ping_interval": 0.05}) as slow,
        direct_or_routed("router", slow, options=limits) as router,
    ):
        body = {"model": MODEL, "messages": PARIS, "stream": True, "max_tokens": 2}
        response = httpx.post(router.url + "/v1/chat/completions", json=body, timeout=60)
    assert response.status_code == 200 and "event: error" not in response.text and "data: [DONE]" in response.text

"""admitted_request_and_generation.py: disconnects, tokenization in a thread, and rejections before tokenization."""

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from chairlift.server.body_reader import TINY_BODY_BYTES
from chairlift.text.tokenizer import ChatPrompt
from chairlift.web.admission import AdmissionLimits
from chairlift.web.tenant_limits import TenantLimits
from support_process import TIMEOUT_SECONDS
from support_server import CHAT, COMPLETIONS, InProcessServer, open_server, run
from support_services import FAKE, AsciiTokenizer, fake_service


async def send_until_disconnect(
    server: InProcessServer, body: dict[str, Any], path: str, is_done: Callable[[list[bytes]], bool]
) -> int:
    """Send a request and disconnect once `is_done` is true; returns the number of bytes sent."""
    parts: list[bytes] = []
    messages = iter([{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}])

    async def receive() -> Any:
        if (message := next(messages, None)) is not None:
            return message
        while not is_done(parts):
            await asyncio.sleep(0.001)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        parts.append(message.get("body", b""))

    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
             "headers": [(b"content-type", b"application/json")]}  # fmt: skip
    await server.http._transport.app(scope, receive, send)  # type: ignore[attr-defined]
    return sum(map(len, parts))


def test_a_client_that_disconnects_is_charged_for_the_generated_tokens() -> None:
    """Otherwise a tenant could generate for free by closing the connection before the end."""
    slow_engine = replace(FAKE, seconds_per_step=0.005)

    async def scenario() -> None:
        async with open_server(fake_service(slow_engine), tenant=TenantLimits(tenant_tokens_per_minute=700)) as server:
            body = {"model": "fake", "prompt": "x" * 40, "max_tokens": 400, "seed": 2, "stream": True}
            num_disconnects = 0
            while (
                num_disconnects < 20
                and (await send_until_disconnect(server, body, COMPLETIONS, lambda parts: len(parts) > 20)) > 2000
            ):
                num_disconnects += 1
            num_tokens = await server.metric("output_tokens_total")
            assert 2 <= num_disconnects <= 5 and num_tokens >= 15 * num_disconnects
            assert await server.metric('requests_aborted_total{reason="client"}') == num_disconnects
            assert await server.metric('requests_finished_total{outcome="abort"}') == num_disconnects
            assert await server.metric("prompt_tokens_total") == 40 * num_disconnects
            assert await server.metric("request_output_tokens_sum") == num_tokens
            assert await server.metric('requests_rejected_total{code="rate_limited"}') == 1
            assert server.replica.admission.open_requests == 0

    run(scenario())


class SlowTokenizer(AsciiTokenizer):
    """A tokenizer that blocks until its gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.num_encoded = threading.Event(), 0

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.num_encoded += 1
        self.gate.wait(TIMEOUT_SECONDS)
        return super().encode(text, add_special_tokens)


class ThreadRecordingTokenizer(AsciiTokenizer):
    """A tokenizer that records the names of the threads that call it."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[str] = set()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self._record_thread()
        return super().encode(text, add_special_tokens)

    def encode_chat(self, prompt: ChatPrompt) -> list[int]:
        self._record_thread()
        return super().encode_chat(prompt)

    def _record_thread(self) -> None:
        self.threads.add(threading.current_thread().name.partition("_")[0])


@pytest.mark.parametrize(
    ("path", "fields", "thread"),
    [
        (COMPLETIONS, {"prompt": "lift"}, "MainThread"),
        (COMPLETIONS, {"prompt": ["lift", "up"]}, "chairlift-text"),
        (COMPLETIONS, {"prompt": "lift", "bad_words": ["down"]}, "chairlift-text"),
        (COMPLETIONS, {"prompt": "lift" * 300}, "chairlift-text"),
        (CHAT, {"messages": [{"role": "user", "content": "lift"}]}, "chairlift-text"),
    ],
)
def test_what_may_take_long_becomes_tokens_in_a_thread(path: str, fields: dict[str, Any], thread: str) -> None:
    async def scenario() -> None:
        tokenizer = ThreadRecordingTokenizer()
        async with open_server(
            fake_service(replace(FAKE, max_model_len=4096, num_blocks=1024), tokenizer=tokenizer)
        ) as server:
            reply = await server.http.post(path, json={"model": "fake", "max_tokens": 3, **fields})
            assert reply.status_code == 200, reply.text
        assert tokenizer.threads == {thread}

    run(scenario())


LARGE_REQUEST = {"model": "fake", "prompt": "lift", "max_tokens": 3, "note": "x" * TINY_BODY_BYTES}


def test_a_request_is_rejected_before_its_text_is_tokenized() -> None:
    async def scenario() -> None:
        tokenizer = SlowTokenizer()
        service, body = fake_service(tokenizer=tokenizer), LARGE_REQUEST
        tenant = TenantLimits(tenant_max_open_requests=2)
        async with open_server(service, admission=AdmissionLimits(max_waiting_requests=2), tenant=tenant) as server:
            tasks = [asyncio.create_task(server.http.post(COMPLETIONS, json=body)) for _ in range(2)]
            while server.replica.admission.open_requests < 2:  # draining waits for these requests, too
                await asyncio.sleep(0.001)
            assert server.replica.admission.waiting_requests == 2
            rejected = await server.http.post(COMPLETIONS, json=body)
            assert rejected.status_code == 429 and tokenizer.num_encoded <= 2
            tokenizer.gate.set()
            assert [reply.status_code for reply in await asyncio.gather(*tasks)] == [200, 200]
            assert (server.replica.admission.open_requests, server.replica.admission.waiting_tokens) == (0, 0)

    run(scenario())


def test_a_disconnect_during_tokenization_is_an_abort_and_frees_the_permit() -> None:
    async def scenario() -> None:
        tokenizer = SlowTokenizer()
        async with open_server(fake_service(tokenizer=tokenizer)) as server:
            client = asyncio.create_task(
                send_until_disconnect(server, LARGE_REQUEST, COMPLETIONS, lambda parts: tokenizer.num_encoded > 0)
            )
            assert await client == 0
            tokenizer.gate.set()
            admission = server.replica.admission
            assert (admission.open_requests, admission.waiting_requests) == (0, 0)
            assert await server.metric('requests_aborted_total{reason="client"}') == 1
            assert "chairlift_requests_rejected_total{" not in (await server.http.get("/metrics")).text

    run(scenario())

"""What a request is counted as, from its permit to its end, however it ends."""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from chairlift.core.errors import DetokenizeFailed, InvalidRequest, NoAllowedToken, NotFound
from chairlift.core.request import FinishReason, Timeline, TimelineEvent
from chairlift.llm.outputs import TextEvent
from chairlift.server.openai import generation as module
from chairlift.server.openai.generation import _GenerationTracker, _StreamWriter, with_client_field
from chairlift.server.openai.parse_request import read_completion
from chairlift.server.openai.response import CompletionRenderer, ResponseMeta
from chairlift.server.replica import TINY_BODY_BYTES
from chairlift.server.telemetry import Telemetry
from chairlift.text.tokenizer import ChatPrompt
from chairlift.web.admission import AdmissionController, AdmissionLimits
from chairlift.web.tenant_limits import TenantLimits
from support_process import PATIENCE
from support_server import CHAT, COMPLETIONS, HELLO, InProcessServer, events, open_server, run
from support_services import FAKE, AsciiTokenizer, Gate, fake_service

ERROR = FinishReason.ERROR


async def value(server: InProcessServer, metric: str) -> float:
    """Return a number of the metrics page."""
    page = (await server.http.get("/metrics")).text
    results = [each for each in page.splitlines() if each.startswith(f"chairlift_{metric} ")]
    return float(results[0].rpartition(" ")[2]) if results else 0.0


def test_what_a_client_counts_is_what_metrics_say() -> None:
    async def ask() -> None:
        async with open_server(fake_service()) as server:
            responses = await asyncio.gather(*[
                server.http.post(CHAT, json={**HELLO, "seed": seed, "max_tokens": 1 + seed % 7, "n": 1 + seed % 2})
                for seed in range(40)
            ])  # fmt: skip
            usages = [reply.json()["usage"] for reply in responses]
            assert await value(server, 'requests_total{outcome="length"}') == 40
            assert await value(server, "output_tokens_total") == sum(each["completion_tokens"] for each in usages)
            assert await value(server, "prompt_tokens_total") == sum(each["prompt_tokens"] for each in usages)
            cached = sum(each["prompt_tokens_details"]["cached_tokens"] for each in usages)
            assert await value(server, "cached_tokens_total") == cached
            for name in ("first_token_seconds", "request_seconds", "queue_seconds", "request_output_tokens"):
                assert await value(server, f"{name}_count") == 40
            admission = server.replica.admission
            assert (admission.open_requests, admission.waiting_requests, admission.waiting_tokens) == (0, 0, 0)

    run(ask())


def test_a_full_line_refuses_and_lets_in_again() -> None:
    gate = Gate()

    async def ask() -> None:
        limits = AdmissionLimits(max_waiting_requests=3)
        async with open_server(fake_service(hook=gate), admission=limits) as server:
            tasks = [asyncio.create_task(server.http.post(CHAT, json={**HELLO, "seed": seed})) for seed in range(3)]
            await asyncio.to_thread(gate.reached.wait, 30)
            while server.replica.admission.waiting_requests < 3:
                await asyncio.sleep(0.01)
            for stream in (False, True):
                refused = await server.http.post(CHAT, json={**HELLO, "stream": stream})
                assert refused.status_code == 429 and refused.json()["error"]["code"] == "overloaded"
                assert int(refused.headers["retry-after"]) >= 1 and int(refused.headers["retry-after-ms"]) >= 1000
            gate.opened.set()
            assert [reply.status_code for reply in await asyncio.gather(*tasks)] == [200] * 3
            assert (await server.http.post(CHAT, json=HELLO)).status_code == 200
            assert await value(server, 'refusals_total{code="overloaded"}') == 2

    run(ask())


def test_a_full_engine_queue_is_429() -> None:
    gate = Gate()

    async def ask() -> None:
        async with open_server(fake_service(hook=gate, max_queue_size=1, max_running_requests=1)) as server:
            tasks = [asyncio.create_task(server.http.post(CHAT, json={**HELLO, "seed": seed})) for seed in range(6)]
            await asyncio.to_thread(gate.reached.wait, 30)
            await asyncio.sleep(0.1)
            gate.opened.set()
            responses: list[httpx.Response] = list(await asyncio.gather(*tasks))
            refused = [reply for reply in responses if reply.status_code != 200]
            assert refused and all(reply.status_code == 429 for reply in refused)
            assert refused[0].json()["error"]["code"] == "queue_full" and "retry-after" in refused[0].headers

    run(ask())


def test_requests_wait_in_admission_while_the_engine_is_full() -> None:
    async def ask() -> None:
        slow = replace(FAKE, seconds_per_step=0.02)
        async with open_server(fake_service(slow, max_running_requests=2)) as server:
            admission, samples = server.replica.admission, []
            tasks = [asyncio.create_task(server.http.post(CHAT, json={**HELLO, "max_tokens": 20})) for _ in range(6)]
            while not all(task.done() for task in tasks):
                samples.append((admission.engine_counts[0] > 0, admission.waiting_requests))
                await asyncio.sleep(0.005)
            assert max(waiting for stands, waiting in samples if stands) >= 4
            assert admission.engine_counts == (0, 0) and admission.waiting_requests == admission.running_requests == 0
            assert [task.result().status_code for task in tasks] == [200] * 6

    run(ask())


def test_a_request_that_expires_while_waiting_was_never_running() -> None:
    """Otherwise its end would count as that of a running request, and the estimated rate would be too high."""

    async def ask() -> None:
        slow = replace(FAKE, seconds_per_step=0.01)
        async with open_server(fake_service(slow, max_running_requests=1)) as server:
            admission = server.replica.admission
            task = asyncio.create_task(server.http.post(CHAT, json={**HELLO, "max_tokens": 200}))
            while not admission.running_requests:
                await asyncio.sleep(0.002)
            failing = await server.http.post(CHAT, json={**HELLO, "timeout": 0.2})
            assert failing.status_code == 408 and admission.running_requests == 1 and admission.waiting_requests == 0
            assert (await task).status_code == 200 and admission.running_requests == 0

    run(ask())


def test_a_tenant_has_its_share() -> None:
    async def ask() -> None:
        async with open_server(fake_service(), tenant=TenantLimits(tenant_requests_per_minute=2)) as server:
            responses = [await server.http.post(CHAT, json=HELLO) for _ in range(3)]
            assert [reply.status_code for reply in responses] == [200, 200, 429]
            assert responses[2].json()["error"]["code"] == "rate_limited"
            assert 25 <= int(responses[2].headers["retry-after"]) <= 30

    run(ask())


def test_a_text_that_cannot_be_made_ends_its_stream_with_an_event() -> None:
    async def ask() -> None:
        async with open_server(fake_service(tokenizer=AsciiTokenizer())) as server:
            body: dict[str, Any] = {"model": "fake", "prompt": "lift", "max_tokens": 50, "seed": 3, "stream": True}
            whole = await server.http.post(COMPLETIONS, json={**body, "return_token_ids": True, "stream": False})
            ids = whole.json()["choices"][0]["token_ids"]
            failing = next(token for token in ids[1:] if token not in ids[: ids.index(token)])
        slow = replace(FAKE, seconds_per_step=0.02)
        async with open_server(fake_service(slow, tokenizer=AsciiTokenizer(broken=failing))) as server:
            reply = await server.http.post(COMPLETIONS, json=body)
            assert reply.status_code == 200 and "[DONE]" not in reply.text
            last = reply.text.strip().split("\n\n")[-1]
            assert last.startswith("event: error\ndata: ") and "detokenize_failed" in last and "no text for" not in last
            assert await value(server, 'requests_total{outcome="detokenize_failed"}') == 1
            assert server.replica.admission.open_requests == 0

    run(ask())


# -- disconnects and rejections ----------------------------------------------------------------------------------------


async def send_until_disconnect(
    server: InProcessServer, body: dict[str, Any], path: str, leaves: Callable[[list[bytes]], bool]
) -> int:
    """Send a request whose client disconnects once `leaves` is true, and return the number of bytes sent."""
    sent: list[bytes] = []
    wire = iter([{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}])

    async def receive() -> Any:
        if (message := next(wire, None)) is not None:
            return message
        while not leaves(sent):
            await asyncio.sleep(0.001)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
             "headers": [(b"content-type", b"application/json")]}  # fmt: skip
    await server.http._transport.app(scope, receive, send)  # type: ignore[attr-defined]
    return sum(map(len, sent))


def test_a_client_that_disconnects_is_charged_for_the_generated_tokens() -> None:
    """Otherwise a tenant could generate for free by closing the connection before the end."""
    slow = replace(FAKE, seconds_per_step=0.005)

    async def ask() -> None:
        async with open_server(fake_service(slow), tenant=TenantLimits(tenant_tokens_per_minute=700)) as server:
            body = {"model": "fake", "prompt": "x" * 40, "max_tokens": 400, "seed": 2, "stream": True}
            left = 0
            while (
                left < 20
                and (await send_until_disconnect(server, body, COMPLETIONS, lambda sent: len(sent) > 20)) > 2000
            ):
                left += 1
            made = await value(server, "output_tokens_total")
            assert 2 <= left <= 5 and made >= 15 * left
            assert await value(server, 'aborts_total{reason="client"}') == left
            assert await value(server, 'requests_total{outcome="abort"}') == left
            assert await value(server, "prompt_tokens_total") == 40 * left
            assert await value(server, "request_output_tokens_sum") == made
            assert await value(server, 'refusals_total{code="rate_limited"}') == 1
            assert server.replica.admission.open_requests == 0

    run(ask())


class SlowTokenizer(AsciiTokenizer):
    """A tokenizer that blocks until its gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.begun = threading.Event(), 0

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.begun += 1
        self.gate.wait(PATIENCE)
        return super().encode(text, add_special_tokens)


class WatchedTokenizer(AsciiTokenizer):
    """A tokenizer that records the names of the threads that call it."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[str] = set()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self._watch()
        return super().encode(text, add_special_tokens)

    def encode_chat(self, prompt: ChatPrompt) -> list[int]:
        self._watch()
        return super().encode_chat(prompt)

    def _watch(self) -> None:
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
    async def ask() -> None:
        tokenizer = WatchedTokenizer()
        async with open_server(
            fake_service(replace(FAKE, max_model_len=4096, num_blocks=1024), tokenizer=tokenizer)
        ) as server:
            reply = await server.http.post(path, json={"model": "fake", "max_tokens": 3, **fields})
            assert reply.status_code == 200, reply.text
        assert tokenizer.threads == {thread}

    run(ask())


IN_A_THREAD = {"model": "fake", "prompt": "lift", "max_tokens": 3, "note": "x" * TINY_BODY_BYTES}


def test_a_request_is_rejected_before_its_text_is_tokenized() -> None:
    async def ask() -> None:
        tokenizer = SlowTokenizer()
        service, body = fake_service(tokenizer=tokenizer), IN_A_THREAD
        tenant = TenantLimits(tenant_max_open_requests=2)
        async with open_server(service, admission=AdmissionLimits(max_waiting_requests=2), tenant=tenant) as server:
            tasks = [asyncio.create_task(server.http.post(COMPLETIONS, json=body)) for _ in range(2)]
            while server.replica.admission.open_requests < 2:  # draining waits for these requests, too
                await asyncio.sleep(0.001)
            assert server.replica.admission.waiting_requests == 2
            refused = await server.http.post(COMPLETIONS, json=body)
            assert refused.status_code == 429 and tokenizer.begun <= 2
            tokenizer.gate.set()
            assert [reply.status_code for reply in await asyncio.gather(*tasks)] == [200, 200]
            assert (server.replica.admission.open_requests, server.replica.admission.waiting_tokens) == (0, 0)

    run(ask())


def test_a_disconnect_during_tokenization_is_an_abort_and_frees_the_permit() -> None:
    async def ask() -> None:
        tokenizer = SlowTokenizer()
        async with open_server(fake_service(tokenizer=tokenizer)) as server:
            leaving = asyncio.create_task(
                send_until_disconnect(server, IN_A_THREAD, COMPLETIONS, lambda sent: tokenizer.begun > 0)
            )
            assert await leaving == 0
            tokenizer.gate.set()
            admission = server.replica.admission
            assert (admission.open_requests, admission.waiting_requests) == (0, 0)
            assert await value(server, 'aborts_total{reason="client"}') == 1
            assert "chairlift_refusals_total{" not in (await server.http.get("/metrics")).text

    run(ask())


def test_a_rejection_by_admission_uses_no_request_of_the_tenant() -> None:
    gate = Gate()

    async def ask() -> None:
        limits = {
            "admission": AdmissionLimits(max_waiting_requests=1),
            "tenant": TenantLimits(tenant_requests_per_minute=3),
        }
        async with open_server(fake_service(hook=gate), **limits) as server:
            task = asyncio.create_task(server.http.post(CHAT, json=HELLO))
            await asyncio.to_thread(gate.reached.wait, 30)
            codes = [(await server.http.post(CHAT, json=HELLO)).json()["error"]["code"] for _ in range(5)]
            assert codes == ["overloaded"] * 5
            gate.opened.set()
            statuses = [
                (await task).status_code,
                *[(await server.http.post(CHAT, json=HELLO)).status_code for _ in "123"],
            ]
            assert statuses == [200, 200, 200, 429]

    run(ask())


def test_the_text_before_an_error_is_sent() -> None:
    """This holds also where text and error arrive in one batch, as for a slow client."""
    asked = read_completion({"model": "fake", "prompt": "x", "stream": True})
    tracker = _GenerationTracker(Telemetry("fake", ()), AdmissionController(AdmissionLimits()).admit(1), 0.0, [], asked)
    error = DetokenizeFailed("no text")

    async def batches() -> AsyncGenerator[Any, None]:
        yield [(0, TextEvent("r", "a", (1,)))]
        yield [(0, TextEvent("r", "b", (2,))), (0, TextEvent("r", "c", (3,), finish_reason=ERROR, error=error)),
               (0, TextEvent("r", "d", (4,)))]  # fmt: skip

    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    renderer = CompletionRenderer(asked, ResponseMeta("cmpl-r", "fake", 1), None)
    results = run(_StreamWriter(send, [], renderer, tracker).run(batches(), "r", with_usage=False))
    assert isinstance(results, DetokenizeFailed)
    *chunks, (kind, data) = events(b"".join(sent).decode())
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "abc"
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    assert kind == "error" and data["error"]["code"] == "detokenize_failed"


@pytest.mark.parametrize("top", [None, 5])
def test_a_long_answer_becomes_json_in_a_thread_and_is_the_same(
    top: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"model": "fake", "prompt": "lift", "max_tokens": 60, "seed": 1, "logprobs": top, "n": 3}

    async def ask() -> list[Any]:
        results = []
        async with open_server(fake_service()) as server:
            for limit in (10**9, 0):
                monkeypatch.setattr(module, "SHORT_TOKENS", limit)
                results.append((await server.http.post(COMPLETIONS, json=body)).json()["choices"])
        return results

    here, there = run(ask())
    assert here == there and len(here) == 3


def test_an_error_of_a_structure_names_the_field_that_asked_for_it() -> None:
    data = with_client_field(InvalidRequest("structured.regex: parentheses", param="structured"), "regex")
    assert data.message == "regex: parentheses" and data.details == {"param": "regex"}
    data = with_client_field(
        InvalidRequest("structured: no output of this model can have one", param="structured"), "tools"
    )
    assert data.message == "tools: no output of this model can have one" and data.details == {"param": "tools"}
    for other in (InvalidRequest("n is bad", param="n"), NotFound("structured.regex: x")):
        assert with_client_field(other, "regex") is other
    plain = InvalidRequest("structured.regex: x", param="structured")
    assert with_client_field(plain, "") is plain, "no client field holds the structure"


def test_a_request_that_the_engine_rejects_is_not_charged_and_a_scheduled_one_is_counted() -> None:
    """A request whose every token is banned was computed; one that found the engine's queue full was not."""
    gate = Gate()

    async def ask() -> None:
        service = fake_service(hook=gate, max_queue_size=1, max_running_requests=1)
        async with open_server(service, tenant=TenantLimits(tenant_requests_per_minute=4)) as server:
            tasks = [asyncio.create_task(server.http.post(CHAT, json={**HELLO, "seed": seed})) for seed in range(4)]
            await asyncio.to_thread(gate.reached.wait, 30)
            await asyncio.sleep(0.1)
            gate.opened.set()
            statuses = [reply.status_code for reply in await asyncio.gather(*tasks)]
            full = statuses.count(429)
            assert full and await value(server, 'refusals_total{code="queue_full"}') == full
            again = [(await server.http.post(CHAT, json=HELLO)).status_code for _ in range(full + 1)]
            assert again == [200] * full + [429], "those have their requests of the minute still"

    run(ask())


@pytest.mark.parametrize(("moments", "metric"), [
    (("queued", "scheduled"), 'requests_total{outcome="no_allowed_token"}'),
    (("queued",), 'refusals_total{code="no_allowed_token"}'),
])  # fmt: skip
def test_a_request_without_allowed_tokens_counts_as_started_once_it_was_scheduled(moments: Any, metric: str) -> None:
    asked, telemetry = read_completion({"model": "fake", "prompt": "x"}), Telemetry("fake", ())
    tracker = _GenerationTracker(telemetry, AdmissionController(AdmissionLimits()).admit(1), 0.0, [], asked)
    timeline = Timeline(tuple(TimelineEvent(name, 0.0) for name in moments))
    last = TextEvent("r", finish_reason=ERROR, error=NoAllowedToken("every token is banned"), timeline=timeline)
    _, error = tracker.take([(0, last)])
    assert isinstance(error, NoAllowedToken)
    tracker.end("r", error)
    lines = telemetry.metrics.render().decode().splitlines()
    counted = [each for each in lines if each.startswith(("chairlift_requests_total{", "chairlift_refusals_total{"))]
    assert counted == [f"chairlift_{metric} 1.0"]

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
from support_server import CHAT, COMPLETIONS, HELLO, Opened, events, opened, run
from support_services import FAKE, AsciiTokenizer, Gate, fake_service

ERROR = FinishReason.ERROR


async def value(door: Opened, line: str) -> float:
    """Return a number of the metrics page."""
    page = (await door.http.get("/metrics")).text
    found = [each for each in page.splitlines() if each.startswith(f"chairlift_{line} ")]
    return float(found[0].rpartition(" ")[2]) if found else 0.0


def test_what_a_client_counts_is_what_metrics_say() -> None:
    async def ask() -> None:
        async with opened(fake_service()) as door:
            answers = await asyncio.gather(*[
                door.http.post(CHAT, json={**HELLO, "seed": seed, "max_tokens": 1 + seed % 7, "n": 1 + seed % 2})
                for seed in range(40)
            ])  # fmt: skip
            usages = [answer.json()["usage"] for answer in answers]
            assert await value(door, 'requests_total{outcome="length"}') == 40
            assert await value(door, "output_tokens_total") == sum(each["completion_tokens"] for each in usages)
            assert await value(door, "prompt_tokens_total") == sum(each["prompt_tokens"] for each in usages)
            cached = sum(each["prompt_tokens_details"]["cached_tokens"] for each in usages)
            assert await value(door, "cached_tokens_total") == cached
            for name in ("first_token_seconds", "request_seconds", "queue_seconds", "request_output_tokens"):
                assert await value(door, f"{name}_count") == 40
            line = door.replica.admission
            assert (line.open_requests, line.waiting_requests, line.waiting_tokens) == (0, 0, 0)

    run(ask())


def test_a_full_line_refuses_and_lets_in_again() -> None:
    gate = Gate()

    async def ask() -> None:
        limits = AdmissionLimits(waiting_requests=3)
        async with opened(fake_service(hook=gate), admission=limits) as door:
            riders = [asyncio.create_task(door.http.post(CHAT, json={**HELLO, "seed": seed})) for seed in range(3)]
            await asyncio.to_thread(gate.reached.wait, 30)
            while door.replica.admission.waiting_requests < 3:
                await asyncio.sleep(0.01)
            for stream in (False, True):
                refused = await door.http.post(CHAT, json={**HELLO, "stream": stream})
                assert refused.status_code == 429 and refused.json()["error"]["code"] == "overloaded"
                assert int(refused.headers["retry-after"]) >= 1 and int(refused.headers["retry-after-ms"]) >= 1000
            gate.opened.set()
            assert [answer.status_code for answer in await asyncio.gather(*riders)] == [200] * 3
            assert (await door.http.post(CHAT, json=HELLO)).status_code == 200
            assert await value(door, 'refusals_total{code="overloaded"}') == 2

    run(ask())


def test_a_full_engine_queue_is_429() -> None:
    gate = Gate()

    async def ask() -> None:
        async with opened(fake_service(hook=gate, max_queue_size=1, max_running_requests=1)) as door:
            riders = [asyncio.create_task(door.http.post(CHAT, json={**HELLO, "seed": seed})) for seed in range(6)]
            await asyncio.to_thread(gate.reached.wait, 30)
            await asyncio.sleep(0.1)
            gate.opened.set()
            answers: list[httpx.Response] = list(await asyncio.gather(*riders))
            refused = [answer for answer in answers if answer.status_code != 200]
            assert refused and all(answer.status_code == 429 for answer in refused)
            assert refused[0].json()["error"]["code"] == "queue_full" and "retry-after" in refused[0].headers

    run(ask())


def test_the_line_stands_while_the_engine_has_room_for_nobody() -> None:
    async def ask() -> None:
        slow = replace(FAKE, seconds_per_step=0.02)
        async with opened(fake_service(slow, max_running_requests=2)) as door:
            line, stood = door.replica.admission, []
            riders = [asyncio.create_task(door.http.post(CHAT, json={**HELLO, "max_tokens": 20})) for _ in range(6)]
            while not all(rider.done() for rider in riders):
                stood.append((line.engine_counts[0] > 0, line.waiting_requests))
                await asyncio.sleep(0.005)
            assert max(waiting for stands, waiting in stood if stands) >= 4
            assert line.engine_counts == (0, 0) and line.waiting_requests == line.running_requests == 0
            assert [rider.result().status_code for rider in riders] == [200] * 6

    run(ask())


def test_who_expires_in_line_was_never_on_board() -> None:
    """Else its end would count as that of a rider, and the line look faster the more of it expires."""

    async def ask() -> None:
        slow = replace(FAKE, seconds_per_step=0.01)
        async with opened(fake_service(slow, max_running_requests=1)) as door:
            line = door.replica.admission
            rider = asyncio.create_task(door.http.post(CHAT, json={**HELLO, "max_tokens": 200}))
            while not line.running_requests:
                await asyncio.sleep(0.002)
            late = await door.http.post(CHAT, json={**HELLO, "timeout": 0.2})
            assert late.status_code == 408 and line.running_requests == 1 and line.waiting_requests == 0
            assert (await rider).status_code == 200 and line.running_requests == 0

    run(ask())


def test_a_tenant_has_its_share() -> None:
    async def ask() -> None:
        async with opened(fake_service(), tenant=TenantLimits(requests_per_minute=2)) as door:
            answers = [await door.http.post(CHAT, json=HELLO) for _ in range(3)]
            assert [answer.status_code for answer in answers] == [200, 200, 429]
            assert answers[2].json()["error"]["code"] == "rate_limited"
            assert 25 <= int(answers[2].headers["retry-after"]) <= 30

    run(ask())


def test_a_text_that_cannot_be_made_ends_its_stream_with_an_event() -> None:
    async def ask() -> None:
        async with opened(fake_service(tokenizer=AsciiTokenizer())) as door:
            body: dict[str, Any] = {"model": "fake", "prompt": "lift", "max_tokens": 50, "seed": 3, "stream": True}
            whole = await door.http.post(COMPLETIONS, json={**body, "return_token_ids": True, "stream": False})
            ids = whole.json()["choices"][0]["token_ids"]
            late = next(token for token in ids[1:] if token not in ids[: ids.index(token)])
        slow = replace(FAKE, seconds_per_step=0.02)
        async with opened(fake_service(slow, tokenizer=AsciiTokenizer(broken=late))) as door:
            answer = await door.http.post(COMPLETIONS, json=body)
            assert answer.status_code == 200 and "[DONE]" not in answer.text
            last = answer.text.strip().split("\n\n")[-1]
            assert last.startswith("event: error\ndata: ") and "detokenize_failed" in last and "no text for" not in last
            assert await value(door, 'requests_total{outcome="detokenize_failed"}') == 1
            assert door.replica.admission.open_requests == 0

    run(ask())


# -- who leaves, and who may not come in -------------------------------------------------------------------------------


async def asked_until(door: Opened, body: dict[str, Any], path: str, leaves: Callable[[list[bytes]], bool]) -> int:
    """Ask as a server would that sees its client leave once `leaves` says so; returns the bytes that were sent."""
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
    await door.http._transport.app(scope, receive, send)  # type: ignore[attr-defined]
    return sum(map(len, sent))


def test_who_hangs_up_has_used_what_was_made() -> None:
    """Else a tenant could have anything for nothing by leaving before the end."""
    slow = replace(FAKE, seconds_per_step=0.005)

    async def ask() -> None:
        async with opened(fake_service(slow), tenant=TenantLimits(tokens_per_minute=700)) as door:
            body = {"model": "fake", "prompt": "x" * 40, "max_tokens": 400, "seed": 2, "stream": True}
            left = 0
            while left < 20 and (await asked_until(door, body, COMPLETIONS, lambda sent: len(sent) > 20)) > 2000:
                left += 1
            made = await value(door, "output_tokens_total")
            assert 2 <= left <= 5 and made >= 15 * left
            assert await value(door, 'aborts_total{reason="client"}') == left
            assert await value(door, 'requests_total{outcome="abort"}') == left
            assert await value(door, "prompt_tokens_total") == 40 * left
            assert await value(door, "request_output_tokens_sum") == made
            assert await value(door, 'refusals_total{code="rate_limited"}') == 1
            assert door.replica.admission.open_requests == 0

    run(ask())


class SlowTokenizer(AsciiTokenizer):
    """Makes tokens once the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.begun = threading.Event(), 0

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.begun += 1
        self.gate.wait(PATIENCE)
        return super().encode(text, add_special_tokens)


class WatchedTokenizer(AsciiTokenizer):
    """Knows who has asked it for tokens."""

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
    ("path", "fields", "place"),
    [
        (COMPLETIONS, {"prompt": "lift"}, "MainThread"),
        (COMPLETIONS, {"prompt": ["lift", "up"]}, "chairlift-text"),
        (COMPLETIONS, {"prompt": "lift", "bad_words": ["down"]}, "chairlift-text"),
        (COMPLETIONS, {"prompt": "lift" * 300}, "chairlift-text"),
        (CHAT, {"messages": [{"role": "user", "content": "lift"}]}, "chairlift-text"),
    ],
)
def test_what_may_take_long_becomes_tokens_in_a_thread(path: str, fields: dict[str, Any], place: str) -> None:
    async def ask() -> None:
        reader = WatchedTokenizer()
        async with opened(fake_service(replace(FAKE, max_model_len=4096, num_blocks=1024), tokenizer=reader)) as door:
            answer = await door.http.post(path, json={"model": "fake", "max_tokens": 3, **fields})
            assert answer.status_code == 200, answer.text
        assert reader.threads == {place}

    run(ask())


IN_A_THREAD = {"model": "fake", "prompt": "lift", "max_tokens": 3, "note": "x" * TINY_BODY_BYTES}


def test_who_may_not_come_in_is_told_before_its_text_becomes_tokens() -> None:
    async def ask() -> None:
        reader = SlowTokenizer()
        service, body = fake_service(tokenizer=reader), IN_A_THREAD
        tenant = TenantLimits(open_requests=2)
        async with opened(service, admission=AdmissionLimits(waiting_requests=2), tenant=tenant) as door:
            riders = [asyncio.create_task(door.http.post(COMPLETIONS, json=body)) for _ in range(2)]
            while door.replica.admission.open_requests < 2:  # also whoever drains waits for these
                await asyncio.sleep(0.001)
            assert door.replica.admission.waiting_requests == 2
            refused = await door.http.post(COMPLETIONS, json=body)
            assert refused.status_code == 429 and reader.begun <= 2
            reader.gate.set()
            assert [answer.status_code for answer in await asyncio.gather(*riders)] == [200, 200]
            assert (door.replica.admission.open_requests, door.replica.admission.waiting_tokens) == (0, 0)

    run(ask())


def test_who_leaves_while_its_text_becomes_tokens_is_an_abort_and_frees_its_place() -> None:
    async def ask() -> None:
        reader = SlowTokenizer()
        async with opened(fake_service(tokenizer=reader)) as door:
            leaving = asyncio.create_task(asked_until(door, IN_A_THREAD, COMPLETIONS, lambda sent: reader.begun > 0))
            assert await leaving == 0
            reader.gate.set()
            line = door.replica.admission
            assert (line.open_requests, line.waiting_requests) == (0, 0)
            assert await value(door, 'aborts_total{reason="client"}') == 1
            assert "chairlift_refusals_total{" not in (await door.http.get("/metrics")).text

    run(ask())


def test_a_refusal_of_the_line_takes_no_request_of_the_minute() -> None:
    gate = Gate()

    async def ask() -> None:
        limits = {"admission": AdmissionLimits(waiting_requests=1), "tenant": TenantLimits(requests_per_minute=3)}
        async with opened(fake_service(hook=gate), **limits) as door:
            rider = asyncio.create_task(door.http.post(CHAT, json=HELLO))
            await asyncio.to_thread(gate.reached.wait, 30)
            codes = [(await door.http.post(CHAT, json=HELLO)).json()["error"]["code"] for _ in range(5)]
            assert codes == ["overloaded"] * 5
            gate.opened.set()
            statuses = [
                (await rider).status_code,
                *[(await door.http.post(CHAT, json=HELLO)).status_code for _ in "123"],
            ]
            assert statuses == [200, 200, 200, 429]

    run(ask())


def test_the_text_before_an_error_is_sent() -> None:
    """Also where both come at once, as to a reader that is slow."""
    asked = read_completion({"model": "fake", "prompt": "x", "stream": True})
    ride = _GenerationTracker(Telemetry("fake", ()), AdmissionController(AdmissionLimits()).admit(1), 0.0, [], asked)
    error = DetokenizeFailed("no text")

    async def batches() -> AsyncGenerator[Any, None]:
        yield [(0, TextEvent("r", "a", (1,)))]
        yield [(0, TextEvent("r", "b", (2,))), (0, TextEvent("r", "c", (3,), finish_reason=ERROR, error=error)),
               (0, TextEvent("r", "d", (4,)))]  # fmt: skip

    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    renderer = CompletionRenderer(asked, ResponseMeta("cmpl-r", "fake", 1), None)
    found = run(_StreamWriter(send, [], renderer, ride).run(batches(), "r", with_usage=False))
    assert isinstance(found, DetokenizeFailed)
    *chunks, (kind, told) = events(b"".join(sent).decode())
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "abc"
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    assert kind == "error" and told["error"]["code"] == "detokenize_failed"


@pytest.mark.parametrize("top", [None, 5])
def test_a_long_answer_becomes_json_in_a_thread_and_is_the_same(
    top: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"model": "fake", "prompt": "lift", "max_tokens": 60, "seed": 1, "logprobs": top, "n": 3}

    async def ask() -> list[Any]:
        found = []
        async with opened(fake_service()) as door:
            for limit in (10**9, 0):
                monkeypatch.setattr(module, "SHORT_TOKENS", limit)
                found.append((await door.http.post(COMPLETIONS, json=body)).json()["choices"])
        return found

    here, there = run(ask())
    assert here == there and len(here) == 3


def test_an_error_of_a_structure_names_the_field_that_asked_for_it() -> None:
    told = with_client_field(InvalidRequest("structured.regex: parentheses", param="structured"), "regex")
    assert told.message == "regex: parentheses" and told.details == {"param": "regex"}
    told = with_client_field(
        InvalidRequest("structured: no output of this model can have one", param="structured"), "tools"
    )
    assert told.message == "tools: no output of this model can have one" and told.details == {"param": "tools"}
    for other in (InvalidRequest("n is bad", param="n"), NotFound("structured.regex: x")):
        assert with_client_field(other, "regex") is other
    plain = InvalidRequest("structured.regex: x", param="structured")
    assert with_client_field(plain, "") is plain, "nobody has asked for one"


def test_who_is_refused_by_the_engine_is_not_charged_and_who_rode_is_counted() -> None:
    """A request whose every token is banned was computed; one that found the engine's queue full was not."""
    gate = Gate()

    async def ask() -> None:
        service = fake_service(hook=gate, max_queue_size=1, max_running_requests=1)
        async with opened(service, tenant=TenantLimits(requests_per_minute=4)) as door:
            riders = [asyncio.create_task(door.http.post(CHAT, json={**HELLO, "seed": seed})) for seed in range(4)]
            await asyncio.to_thread(gate.reached.wait, 30)
            await asyncio.sleep(0.1)
            gate.opened.set()
            statuses = [answer.status_code for answer in await asyncio.gather(*riders)]
            full = statuses.count(429)
            assert full and await value(door, 'refusals_total{code="queue_full"}') == full
            again = [(await door.http.post(CHAT, json=HELLO)).status_code for _ in range(full + 1)]
            assert again == [200] * full + [429], "those have their requests of the minute still"

    run(ask())


@pytest.mark.parametrize(("moments", "line"), [
    (("queued", "scheduled"), 'requests_total{outcome="no_allowed_token"}'),
    (("queued",), 'refusals_total{code="no_allowed_token"}'),
])  # fmt: skip
def test_a_generation_that_has_nothing_left_to_say_was_begun_where_it_rode(moments: Any, line: str) -> None:
    asked, telemetry = read_completion({"model": "fake", "prompt": "x"}), Telemetry("fake", ())
    ride = _GenerationTracker(telemetry, AdmissionController(AdmissionLimits()).admit(1), 0.0, [], asked)
    timeline = Timeline(tuple(TimelineEvent(name, 0.0) for name in moments))
    last = TextEvent("r", finish_reason=ERROR, error=NoAllowedToken("every token is banned"), timeline=timeline)
    _, error = ride.take([(0, last)])
    assert isinstance(error, NoAllowedToken)
    ride.end("r", error)
    lines = telemetry.metrics.render().decode().splitlines()
    counted = [each for each in lines if each.startswith(("chairlift_requests_total{", "chairlift_refusals_total{"))]
    assert counted == [f"chairlift_{line} 1.0"]

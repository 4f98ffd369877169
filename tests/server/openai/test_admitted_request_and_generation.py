"""admitted_request_and_generation.py: metrics, admission, tenants' limits and errors of a request."""

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest

from chairlift.core.engine_output import FinishReason
from chairlift.engine.client.inline import InlineClient
from chairlift.server.openai import admitted_request_and_generation as module
from chairlift.web.admission import AdmissionLimits
from chairlift.web.tenant_limits import TenantLimits
from support_server import CHAT, COMPLETIONS, HELLO, events, open_server, run
from support_services import FAKE, AsciiTokenizer, Gate, fake_service

ERROR = FinishReason.ERROR


def test_what_a_client_counts_is_what_metrics_say() -> None:
    async def scenario() -> None:
        async with open_server(fake_service()) as server:
            responses = await asyncio.gather(*[
                server.http.post(CHAT, json={**HELLO, "seed": seed, "max_tokens": 1 + seed % 7, "n": 1 + seed % 2})
                for seed in range(40)
            ])  # fmt: skip
            usages = [reply.json()["usage"] for reply in responses]
            assert await server.metric('requests_finished_total{outcome="length"}') == 40
            assert await server.metric("output_tokens_total") == sum(each["completion_tokens"] for each in usages)
            assert await server.metric("prompt_tokens_total") == sum(each["prompt_tokens"] for each in usages)
            cached = sum(each["prompt_tokens_details"]["cached_tokens"] for each in usages)
            assert await server.metric("prefix_cached_tokens_total") == cached
            for name in (
                "time_to_first_token_seconds",
                "e2e_request_latency_seconds",
                "request_queue_time_seconds",
                "request_output_tokens",
            ):
                assert await server.metric(f"{name}_count") == 40
            admission = server.replica.admission
            assert (admission.open_requests, admission.waiting_requests, admission.waiting_tokens) == (0, 0, 0)

    run(scenario())


def test_latency_targets_are_counted_for_streams_and_whole_responses() -> None:
    """A whole response has a first token and no time between tokens; an invalid request has neither."""

    async def scenario() -> None:
        service = fake_service(replace(FAKE, seconds_per_step=0.01))
        async with open_server(service, slo_ttft_ms=60_000, slo_itl_ms=0.1) as server:
            bodies = (
                {**HELLO, "stream": True, "max_tokens": 10, "ignore_eos": True},
                HELLO,
                {**HELLO, "temperature": 9},
            )
            statuses = [(await server.http.post(CHAT, json=body)).status_code for body in bodies]
            assert statuses == [200, 200, 400]
            for series, value in (
                ('slo_requests_total{met="true",model="fake",slo="ttft"}', 2),
                ('slo_requests_total{met="false",model="fake",slo="itl"}', 1),
                ('slo_requests_total{met="true",model="fake",slo="itl"}', 0),
                ('model_requests_total{model="fake",result="success"}', 2),
                ('model_requests_total{model="none",result="client_error"}', 1),
                ('tenant_requests_total{status="400",tenant="none"}', 1),
                ('tenant_slo_requests_total{met="true",slo="ttft",tenant="none"}', 2),
            ):
                assert await server.metric(series) == value, series
            assert await server.metric('tenant_tokens_total{tenant="none"}') > 10

    run(scenario())


def test_a_full_line_refuses_and_lets_in_again() -> None:
    gate = Gate()

    async def scenario() -> None:
        limits = AdmissionLimits(max_waiting_requests=3)
        async with open_server(fake_service(hook=gate), admission=limits) as server:
            tasks = [asyncio.create_task(server.http.post(CHAT, json={**HELLO, "seed": seed})) for seed in range(3)]
            await asyncio.to_thread(gate.reached.wait, 30)
            while server.replica.admission.waiting_requests < 3:
                await asyncio.sleep(0.01)
            for stream in (False, True):
                rejected = await server.http.post(CHAT, json={**HELLO, "stream": stream})
                assert rejected.status_code == 429 and rejected.json()["error"]["code"] == "overloaded"
                assert int(rejected.headers["retry-after"]) >= 1 and int(rejected.headers["retry-after-ms"]) >= 1000
            gate.opened.set()
            assert [reply.status_code for reply in await asyncio.gather(*tasks)] == [200] * 3
            assert (await server.http.post(CHAT, json=HELLO)).status_code == 200
            assert await server.metric('requests_rejected_total{code="overloaded"}') == 2

    run(scenario())


def test_a_full_engine_queue_is_429() -> None:
    gate = Gate()

    async def scenario() -> None:
        async with open_server(fake_service(hook=gate, max_queue_size=1, max_running_requests=1)) as server:
            tasks = [asyncio.create_task(server.http.post(CHAT, json={**HELLO, "seed": seed})) for seed in range(6)]
            await asyncio.to_thread(gate.reached.wait, 30)
            await asyncio.sleep(0.1)
            gate.opened.set()
            responses: list[httpx.Response] = list(await asyncio.gather(*tasks))
            rejected = [reply for reply in responses if reply.status_code != 200]
            assert rejected and all(reply.status_code == 429 for reply in rejected)
            assert rejected[0].json()["error"]["code"] == "queue_full" and "retry-after" in rejected[0].headers

    run(scenario())


def test_requests_wait_in_admission_while_the_engine_is_full() -> None:
    async def scenario() -> None:
        slow_engine = replace(FAKE, seconds_per_step=0.02)
        async with open_server(fake_service(slow_engine, max_running_requests=2)) as server:
            admission, samples = server.replica.admission, []
            tasks = [asyncio.create_task(server.http.post(CHAT, json={**HELLO, "max_tokens": 20})) for _ in range(6)]
            while not all(task.done() for task in tasks):
                samples.append((admission.engine_counts[0] > 0, admission.waiting_requests))
                await asyncio.sleep(0.005)
            assert max(waiting for is_full, waiting in samples if is_full) >= 4
            assert admission.engine_counts == (0, 0) and admission.waiting_requests == admission.running_requests == 0
            assert [task.result().status_code for task in tasks] == [200] * 6

    run(scenario())


def test_a_request_that_expires_while_waiting_was_never_running() -> None:
    """Otherwise its end would count as that of a running request and raise the measured rate."""

    async def scenario() -> None:
        slow_engine = replace(FAKE, seconds_per_step=0.01)
        async with open_server(fake_service(slow_engine, max_running_requests=1)) as server:
            admission = server.replica.admission
            task = asyncio.create_task(server.http.post(CHAT, json={**HELLO, "max_tokens": 200}))
            while not admission.running_requests:
                await asyncio.sleep(0.002)
            failing = await server.http.post(CHAT, json={**HELLO, "timeout": 0.2})
            assert failing.status_code == 408 and admission.running_requests == 1 and admission.waiting_requests == 0
            assert (await task).status_code == 200 and admission.running_requests == 0

    run(scenario())


def test_a_tenant_has_its_share() -> None:
    async def scenario() -> None:
        async with open_server(fake_service(), tenant=TenantLimits(tenant_requests_per_minute=2)) as server:
            responses = [await server.http.post(CHAT, json=HELLO) for _ in range(3)]
            assert [reply.status_code for reply in responses] == [200, 200, 429]
            assert responses[2].json()["error"]["code"] == "rate_limited"
            assert 25 <= int(responses[2].headers["retry-after"]) <= 30

    run(scenario())


def test_resumed_tokens_are_charged_once() -> None:
    async def scenario() -> None:
        async with open_server(fake_service(), tenant=TenantLimits(tenant_tokens_per_minute=125)) as server:
            body = {**HELLO, "max_tokens": 40, "return_token_ids": True}  # 13 + 40 tokens
            [choice] = (await server.http.post(CHAT, json=body)).json()["choices"]
            resumed = {**body, "resume": [choice["token_ids"][:38]]}  # 13 + 2 tokens
            statuses = [(await server.http.post(CHAT, json=each)).status_code for each in [resumed] * 4 + [body]]
            assert statuses == [200, 200, 200, 200, 429], "53 + 4 * 15 tokens are used, 12 are left"

    run(scenario())


def test_a_text_that_cannot_be_made_ends_its_stream_with_an_event() -> None:
    async def scenario() -> None:
        async with open_server(fake_service(tokenizer=AsciiTokenizer())) as server:
            body: dict[str, Any] = {"model": "fake", "prompt": "lift", "max_tokens": 50, "seed": 3, "stream": True}
            response = await server.http.post(COMPLETIONS, json={**body, "return_token_ids": True, "stream": False})
            ids = response.json()["choices"][0]["token_ids"]
            failing = list(dict.fromkeys(ids))[-1]  # late, so that the stream has begun on a busy machine, too
        slow_engine = replace(FAKE, seconds_per_step=0.02)
        async with open_server(fake_service(slow_engine, tokenizer=AsciiTokenizer(broken=failing))) as server:
            reply = await server.http.post(COMPLETIONS, json=body)
            assert reply.status_code == 200 and "[DONE]" not in reply.text
            final_event = reply.text.strip().split("\n\n")[-1]
            assert final_event.startswith("event: error\ndata: ") and "detokenize_failed" in final_event
            assert "no text for" not in final_event
            assert await server.metric('requests_finished_total{outcome="detokenize_failed"}') == 1
            assert server.replica.admission.open_requests == 0

    run(scenario())


def test_a_silent_stream_has_no_comments_while_the_engine_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A router counts them as tokens, and would wait for ever."""
    gate, hangs = Gate(), [False, False, True, True, True]

    def is_hanging(client: InlineClient) -> bool:
        if len(hangs) == 1:
            gate.opened.set()
        return hangs.pop(0) if len(hangs) > 1 else hangs[0]

    async def scenario() -> None:
        monkeypatch.setattr(InlineClient, "is_hanging", property(is_hanging))
        async with open_server(fake_service(hook=gate), sse_ping_interval=0.005) as server:
            reply = await server.http.post(CHAT, json={**HELLO, "stream": True})
            assert reply.text.count(": waiting\n\n") == 2 and "[DONE]" in reply.text
            assert len(hangs) == 1 and ": generating" not in reply.text

    run(scenario())


def test_a_rejection_by_admission_uses_no_request_of_the_tenant() -> None:
    gate = Gate()

    async def scenario() -> None:
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

    run(scenario())


@pytest.mark.parametrize("num_logprobs", [None, 5])
def test_a_long_answer_becomes_json_in_a_thread_and_is_the_same(
    num_logprobs: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"model": "fake", "prompt": "lift", "max_tokens": 60, "seed": 1, "logprobs": num_logprobs, "n": 3}

    async def scenario() -> list[Any]:
        results = []
        async with open_server(fake_service()) as server:
            for limit in (10**9, 0):
                monkeypatch.setattr(module, "SHORT_TOKENS", limit)
                results.append((await server.http.post(COMPLETIONS, json=body)).json()["choices"])
        return results

    inline, in_thread = run(scenario())
    assert inline == in_thread and len(inline) == 3


def test_a_request_that_the_engine_rejects_is_not_charged_and_a_scheduled_one_is_counted() -> None:
    """A request without allowed tokens was computed; one that the full queue rejected was not."""
    gate = Gate()

    async def scenario() -> None:
        service = fake_service(hook=gate, max_queue_size=1, max_running_requests=1)
        async with open_server(service, tenant=TenantLimits(tenant_requests_per_minute=4)) as server:
            tasks = [asyncio.create_task(server.http.post(CHAT, json={**HELLO, "seed": seed})) for seed in range(4)]
            await asyncio.to_thread(gate.reached.wait, 30)
            await asyncio.sleep(0.1)
            gate.opened.set()
            statuses = [reply.status_code for reply in await asyncio.gather(*tasks)]
            full = statuses.count(429)
            assert full and await server.metric('requests_rejected_total{code="queue_full"}') == full
            statuses_after = [(await server.http.post(CHAT, json=HELLO)).status_code for _ in range(full + 1)]
            assert statuses_after == [200] * full + [429], "the rejected requests do not count in the minute"

    run(scenario())


def test_a_request_may_come_again_with_its_id_while_it_runs() -> None:
    gate = Gate()

    async def scenario() -> None:
        async with open_server(fake_service(hook=gate)) as server:
            headers = {"x-request-id": "r-1", "x-request-timeout-ms": "20000"}
            tasks = [asyncio.create_task(server.http.post(CHAT, json=HELLO, headers=headers)) for _ in range(2)]
            await asyncio.to_thread(gate.reached.wait, 30)
            while server.replica.admission.open_requests < 2:
                await asyncio.sleep(0.001)
            gate.opened.set()
            first, second = [response.json() for response in await asyncio.gather(*tasks)]
            assert first["id"] == second["id"] == "chatcmpl-r-1"
            assert first["choices"] == second["choices"]

    run(scenario())


def test_the_header_of_the_timeout_is_the_deadline_that_is_left() -> None:
    async def scenario() -> None:
        slow_engine = replace(FAKE, seconds_per_step=0.02)
        async with open_server(fake_service(slow_engine)) as server:
            body = {**HELLO, "max_tokens": 300, "stream": True, "timeout": 50}
            response = await server.http.post(CHAT, json=body, headers={"x-request-timeout-ms": "150"})
            name, data = events(response.text)[-1]
            assert name == "error" and data["error"]["code"] == "timeout"

    run(scenario())


def test_a_drain_may_hand_over_what_a_router_can_resume() -> None:
    gate = Gate()
    router, progress = {"x-chairlift-router": "1"}, {"x-chairlift-progress": "1"}
    prompt = {"model": "fake", "prompt": "x", "max_tokens": 3}
    resumable: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({**prompt, "stream": True, "return_token_ids": True}, router), (prompt, router | progress),
    ]  # fmt: skip
    others: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({**prompt, "stream": True, "return_token_ids": True}, {}), ({**prompt, "stream": True}, router),
        (prompt, router), (prompt, progress), ({**prompt, "best_of": 2}, router | progress),
    ]  # fmt: skip

    async def scenario() -> None:
        async with open_server(fake_service(hook=gate)) as server:
            tasks = []
            for number, (body, headers) in enumerate([*resumable, *others]):
                sent = {**headers, "x-request-id": f"r-{number}"}
                tasks.append(asyncio.create_task(server.http.post(COMPLETIONS, json=body, headers=sent)))
            while len(server.replica.llm._dispatcher().open_ids) < len(tasks):
                await asyncio.sleep(0.001)
            taken = server.replica.handover.take_all()
            assert sorted(request_id.partition(".")[0] for request_id in taken) == ["r-0", "r-1"]
            gate.opened.set()
            assert [response.status_code for response in await asyncio.gather(*tasks)] == [200] * len(tasks)
            assert server.replica.handover.take_all() == set()

    run(scenario())

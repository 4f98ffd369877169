"""Resumed streams: what a lost or drained replica began goes on at another as if uncut; late ones are hedged."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from chairlift.router.attempts.hedging import HedgeConfig
from chairlift.router.endpoint import ReplicaKind
from chairlift.router.model_aliases_and_canaries import ModelRoutes
from chairlift.web.service.http_config import HttpConfig
from chairlift.web.tenant_limits import TenantLimits
from support_request_proxy import DONE, client_event, know_weights, text_event, token_stream
from support_router import CHAT, HELLO, Connection, ReceivedRequest, RunningRouter, running_router, scripted
from support_server import run

STREAM = {**HELLO, "stream": True}
CHAIRLIFT = ReplicaKind.CHAIRLIFT


async def post(router: RunningRouter, body: Any = STREAM) -> httpx.Response:
    async with httpx.AsyncClient(base_url=router.url, timeout=10) as http:
        response = await http.post(CHAT, json=body)
    assert not router.router.open_proxies and router.router.admission.open_requests == 0
    assert all(each.open_requests == 0 for each in router.router.replicas.statuses(0.0))
    assert router.router.budget("m").active_requests == router.router.budget("m").active_retries == 0
    return response


def uncut(port: bytes) -> bytes:
    """Return the stream as one replica would have brought it."""
    return b"".join(client_event(number, chunk_id=port, is_last=number == 9) for number in range(10)) + DONE


async def reset(connection: Connection) -> None:
    connection.reset()


async def end(connection: Connection) -> None:
    await connection.end()


async def hang(connection: Connection) -> None:
    await asyncio.Event().wait()


@pytest.mark.share(2)
@pytest.mark.parametrize("then", [reset, end], ids=["reset", "end"])
@pytest.mark.parametrize("num_tokens", [0, 1, 4, 9])
def test_a_stream_goes_on_where_its_replica_was_lost(num_tokens: int, then: Any) -> None:
    async def scenario() -> None:
        async with (
            scripted(token_stream(num_tokens, then)) as one,
            scripted(token_stream(10)) as two,
            running_router([one.url, two.url], kind=CHAIRLIFT) as router,
        ):
            know_weights(router)
            for _ in range(2):  # one of them begins at the first replica
                response = await post(router)
                head, _, _ = response.content.partition(b'","model"')
                assert response.content == uncut(head.rpartition(b'"')[2])
                assert response.headers["x-own"] == "1" and response.headers["x-chairlift-attempts"] in "12"
            (lost,) = one.requests
            resumed = next(
                each for each in two.requests if each.headers["x-request-id"] == lost.headers["x-request-id"]
            )
            assert resumed.fields["seed"] == lost.fields["seed"] and resumed.fields["return_token_ids"] is True
            tokens = [100 + number for number in range(num_tokens)]
            has_any = num_tokens > 0
            assert resumed.fields.get("resume") == ([tokens] if has_any else None)
            assert resumed.fields.get("resume_fingerprint") == ("w" if has_any else None)

    run(scenario())


def test_a_resumed_stream_has_the_alias_that_the_request_names() -> None:
    async def scenario() -> None:
        routes = ModelRoutes.parse(["alias=m"])
        async with (
            scripted(token_stream(4, reset)) as one,
            scripted(token_stream(10)) as two,
            running_router([one.url, two.url], kind=CHAIRLIFT, routes=routes) as router,
        ):
            know_weights(router)
            for _ in range(2):  # one of them begins at the first replica
                content = (await post(router, {**STREAM, "model": "alias"})).content
                assert content.count(b'"model":"alias"') == 10 and b'"model":"m"' not in content
                port = content.partition(b'","model"')[0].rpartition(b'"')[2]
                assert content.replace(b'"alias"', b'"m"') == uncut(port)
            assert len(one.requests) == 1 and len(two.requests) == 2

    run(scenario())


async def reset_later(connection: Connection) -> None:
    """Reset the connection when what was sent has been read."""
    await asyncio.sleep(0.3)
    connection.reset()


def test_the_head_of_a_resumed_stream_is_that_of_its_first_attempt() -> None:
    async def scenario() -> None:
        async with (
            scripted(token_stream(3, reset_later)) as one,
            scripted(token_stream(3, reset_later)) as two,
            running_router([one.url, two.url], kind=CHAIRLIFT) as router,
        ):
            know_weights(router)
            response = await post(router)
            first = next(each for each in (one, two) if "resume" not in each.requests[0].fields)
            assert response.headers["x-chairlift-replica"] == first.url
            assert response.headers["x-chairlift-attempts"] == "1"
            assert response.content.count(b"data: ") == 7 and b"resume_failed" in response.content

    run(scenario())


def test_a_resumed_stream_is_charged_its_prompt_once() -> None:
    async def scenario() -> None:
        http = HttpConfig(tenant=TenantLimits(tenant_tokens_per_minute=3000))
        async with (
            scripted(token_stream(6, reset)) as one,
            scripted(token_stream(6, reset)) as two,
            running_router([one.url, two.url], kind=CHAIRLIFT, http=http) as router,
        ):
            know_weights(router)
            messages = [{"role": "user", "content": "word " * 2000}]  # about 2500 tokens
            response = await post(router, {**STREAM, "messages": messages})
            assert response.content.endswith(DONE) and len(one.requests) == len(two.requests) == 1
            assert (await post(router, {**STREAM, "max_tokens": 400})).status_code == 200
            assert (await post(router, {**STREAM, "messages": messages})).status_code == 429, "it was charged"

    run(scenario())


def test_a_stream_goes_on_only_where_the_weights_are_the_same() -> None:
    async def scenario() -> None:
        async with (
            scripted(token_stream(3, reset)) as one,
            scripted(token_stream(3, reset)) as two,
            running_router([one.url, two.url], kind=CHAIRLIFT) as router,
        ):
            know_weights(router, ("w", "other"))
            content = (await post(router)).content
            assert b'"code":"resume_failed"' in content and DONE not in content
            assert content.count(b"finish_reason") == 3 and len(one.requests) + len(two.requests) == 1

    run(scenario())


def test_a_response_that_is_not_streamed_goes_on_too() -> None:
    async def script(connection: Connection, request: ReceivedRequest) -> None:
        assert request.headers["x-chairlift-progress"] == "1"
        begin = len(request.fields.get("resume", [[]])[0])
        await connection.stream_head(x_begin=str(begin))
        for number in range(begin, begin + 2):
            event = {"index": 0, "token_ids": [100 + number], "position": number}
            await connection.piece(b"event: progress\ndata: %s\n\n" % json.dumps(event).encode())
        if begin < 4:
            connection.reset()
            return
        await connection.piece(b'event: response\ndata: {"choices":[],"begin":%d}\n\n' % begin)
        await connection.end()

    async def scenario() -> None:
        async with (
            scripted(script) as one,
            scripted(script) as two,
            scripted(script) as three,
            running_router([one.url, two.url, three.url], kind=CHAIRLIFT) as router,
        ):
            know_weights(router, ("w", "w", "w"))
            response = await post(router, HELLO)
            assert response.json() == {"choices": [], "begin": 4} and response.status_code == 200
            assert response.headers["content-length"] == str(len(response.content))
            found = [each.fields.get("resume", []) for each in (*one.requests, *two.requests, *three.requests)]
            assert sorted(found) == [[], [[100, 101]], [[100, 101, 102, 103]]]

    run(scenario())


def test_a_replica_that_knows_no_progress_events_answers_with_its_body() -> None:
    async def script(connection: Connection, request: ReceivedRequest) -> None:
        await connection.respond({"whole": True}, x_own="1")

    async def scenario() -> None:
        async with scripted(script) as one, running_router([one.url], kind=CHAIRLIFT) as router:
            know_weights(router, ("w",))
            response = await post(router, HELLO)
            assert response.json() == {"whole": True} and response.headers["x-own"] == "1"
            assert response.headers["content-type"] == "application/json"

    run(scenario())


def test_a_replica_that_is_drained_hands_its_streams_over() -> None:
    async def scenario() -> None:
        async with (
            scripted(token_stream(3, hang)) as one,
            scripted(token_stream(10)) as two,
            running_router([one.url, two.url], kind=CHAIRLIFT) as router,
        ):
            know_weights(router)
            router.router.replicas.drain(two.url, 0.0)
            asking = asyncio.create_task(post(router))
            while not router.router.open_proxies or router.router.admission.waiting_requests:
                await asyncio.sleep(0.001)
            router.router.replicas.undrain(two.url, 0.0)
            router.router.drain_replica(one.url)
            response = await asking
            head, _, _ = response.content.partition(b'","model"')
            assert response.content == uncut(head.rpartition(b'"')[2])
            assert response.headers["x-chairlift-replica"] == one.url
            assert two.requests[0].fields["resume"] == [[100, 101, 102]]
            assert (await post(router)).headers["x-chairlift-replica"] == two.url, "a drained replica gets no more"
            health = {each.replica_id: each.num_ejections for each in router.router.replicas.statuses(0.0)}
            assert set(health.values()) == {0}

    run(scenario())


def test_a_stream_goes_on_at_its_draining_replica_if_no_other_one_can_take_it() -> None:
    async def wait(connection: Connection) -> None:
        await drained.wait()
        for number in range(3, 10):
            await connection.piece(text_event(number))
        await connection.piece(DONE)
        await connection.end()

    async def scenario() -> None:
        async with (
            scripted(token_stream(3, wait)) as one,
            running_router([one.url], kind=CHAIRLIFT) as router,
        ):
            asking = asyncio.create_task(post(router))
            while not router.router.open_proxies or router.router.admission.waiting_requests:
                await asyncio.sleep(0.001)
            router.router.drain_replica(one.url)
            drained.set()
            content = (await asking).content
            assert content.endswith(text_event(9) + DONE) and content.count(b"data: ") == 11

    drained = asyncio.Event()
    run(scenario())


def test_a_late_first_token_is_hedged_and_the_first_one_wins() -> None:
    async def script(connection: Connection, request: ReceivedRequest) -> None:
        urls.append(connection.port)
        if len(urls) == 2:  # the first request is quick and teaches the delay
            try:
                await asyncio.Event().wait()
            finally:
                urls.append(0)
        await connection.stream_head()
        await connection.piece(text_event(len(urls)))
        await connection.piece(DONE)
        await connection.end()

    async def scenario() -> None:
        hedging = HedgeConfig(min_samples=1, min_delay_seconds=0.001, max_share=1.0)
        async with (
            scripted(script) as one,
            scripted(script) as two,
            running_router([one.url, two.url], hedging=hedging) as router,
        ):
            assert (await post(router)).content == text_event(1) + DONE
            response = await post(router)
            assert response.content == text_event(3) + DONE and response.headers["x-chairlift-attempts"] == "2"
            assert len(one.requests) + len(two.requests) == 3
            page = router.router.telemetry.metrics.render()
            assert b'router_attempts_total{outcome="success"} 2' in page
            assert b'router_attempts_total{outcome="neutral"} 1' in page
            controller = router.router.hedging("m")
            assert controller is not None and controller.num_hedges == 1

    urls: list[int] = []
    run(scenario())

"""Silent streams of every API, direct and through a router: comments, pings or progress events, then what is usual."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from chairlift.engine.client.inline import InlineClient
from chairlift.llm.text_service import TextService
from chairlift.router.attempts.attempt import AttemptLimits
from chairlift.router.endpoint import ReplicaKind
from chairlift.router.live.request_timelines import RequestTimeline
from chairlift.web.service.http_config import HttpConfig
from support_request_proxy import DONE, client_event, know_weights, text_event, token_stream
from support_router import CHAT, COMPLETIONS, HELLO, Connection, ReceivedRequest, running_router, scripted
from support_router_app import RoutedFleet, routed, served_replica
from support_server import events, run
from support_services import FAKE, Gate, fake_service

SHORT, LONG = 0.01, 1000.0
SECONDS = 20.0
PLACES = ["direct", "router", "router that does not know the weights"]
VARYING_HEADERS = {"x-chairlift-attempts", "x-chairlift-replica", "content-length", "transfer-encoding"}
STREAM = {**HELLO, "stream": True}
DATA = [text_event(number) for number in range(3)]
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
SAY_HELLO = [{"role": "user", "content": "hello"}]
COMMON: dict[str, Any] = {"model": "fake", "stream": True, "seed": 1}

APIS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": SAY_HELLO, "max_tokens": 5}),
    "completions": (COMPLETIONS, {"prompt": "hello", "max_tokens": 5}),
    "responses": ("/v1/responses", {"input": "hello", "max_output_tokens": 16}),
    "messages": ("/v1/messages", {"messages": SAY_HELLO, "max_tokens": 5}),
    "ollama chat": ("/api/chat", {"messages": SAY_HELLO, "options": {"num_predict": 5, "seed": 1}}),
    "ollama generate": ("/api/generate", {"prompt": "hello", "options": {"num_predict": 5, "seed": 1}}),
}


def pings(seconds: float = SHORT) -> dict[str, Any]:
    """Return the option of a router whose streams may be silent for so long."""
    return {"http": HttpConfig(sse_ping_interval=seconds)}


def body_of(api: str, **more: Any) -> tuple[str, dict[str, Any]]:
    path, fields = APIS[api]
    common = {name: value for name, value in COMMON.items() if name != "seed" or "options" not in fields}
    return path, common | fields | more


def is_alive(block: bytes) -> bool:
    """Whether a block of a stream only keeps it alive."""
    if block.startswith(b":") or block + b"\n\n" == PING or b'"type":"response.in_progress"' in block:
        return True
    if not block.startswith(b"{"):
        return False
    line = json.loads(block)
    return not line["done"] and (line.get("message") or {"content": line.get("response")})["content"] == ""


def blocks_of(api: str, content: bytes) -> list[bytes]:
    return [each for each in content.split(b"\n" if "ollama" in api else b"\n\n") if each]


def kinds_and_text(api: str, content: bytes) -> tuple[list[str], str]:
    """Return the kinds of a stream's events, each once in a row, and its text."""
    kinds, text = [""], ""
    for block in blocks_of(api, content):
        data = block.rpartition(b"data: ")[2]
        value = {} if is_alive(block) or data == b"[DONE]" else json.loads(data)
        choice = (value.get("choices") or [{}])[0]
        delta = choice.get("delta") or value.get("delta") or {}
        text += delta if isinstance(delta, str) else delta.get("content") or delta.get("text") or ""
        text += choice.get("text") or ""
        if "ollama" in api and value:
            text += value.get("response") or (value.get("message") or {}).get("content") or ""
        kind = "" if is_alive(block) else value.get("type") or ",".join([*value, str(value.get("done"))])
        kinds += [kind] if kind not in ("", kinds[-1]) else []
    return kinds, text


@asynccontextmanager
async def server_of(
    place: str, gate: Gate | None, seconds: float, service: TextService | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    """Serve a replica, directly or behind a router that knows its weights; yields a client."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(served_replica(hook=gate, service=service, sse_ping_interval=seconds))
        if place != "direct":
            router = await stack.enter_async_context(running_router(
                [url], kind=ReplicaKind.CHAIRLIFT, models=("fake",), **pings(seconds)
            ))  # fmt: skip
            if place == "router":
                know_weights(router, ("w",), "fake")
            url = router.url
        yield await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=20))


async def read(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], on_block: Callable[[bytes], object] = lambda content: None
) -> tuple[httpx.Response, bytes]:
    """Read a stream; `on_block` is called with what there is so far."""
    content = b""
    async with http.stream("POST", path, json=body, headers={"x-request-id": "r-1"}) as response:
        async for piece in response.aiter_bytes():
            content += piece
            on_block(content)
    return response, content


@pytest.mark.share(4)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("api", APIS)
def test_a_silent_stream_is_kept_alive_and_then_the_usual_one(api: str, place: str) -> None:
    path, body = body_of(api)
    gate = Gate()

    def open_gate(content: bytes) -> None:
        assert gate.opened.is_set() or all(
            is_alive(each) or b"response.created" in each for each in blocks_of(api, content)
        )
        if sum(map(is_alive, blocks_of(api, content))) >= 3:
            gate.opened.set()

    async def scenario() -> None:
        async with server_of(place, gate, SHORT) as http:
            response, silent = await read(http, path, body, open_gate)
            assert response.status_code == 200 and gate.opened.is_set()
        async with server_of(place, None, LONG) as http:
            plain_response, plain = await read(http, path, body)
            assert not (response.headers.keys() ^ plain_response.headers.keys()) - VARYING_HEADERS
            assert kinds_and_text(api, silent) == kinds_and_text(api, plain)
            assert len(kinds_and_text(api, plain)[1]) >= 5

    run(scenario(), SECONDS)


@pytest.mark.share(1)
@pytest.mark.parametrize("place", PLACES)
def test_a_whole_response_is_silent_until_it_is_complete(place: str) -> None:
    gate = Gate()

    async def scenario() -> None:
        async with server_of(place, gate, SHORT) as http:
            path, body = body_of("chat", stream=False)
            task = asyncio.create_task(http.post(path, json=body))
            await asyncio.to_thread(gate.reached.wait, 20)
            await asyncio.sleep(10 * SHORT)
            gate.opened.set()
            response = await task
            assert response.status_code == 200 and response.content.startswith(b"{")
            assert response.headers["content-length"] == str(len(response.content))

    run(scenario(), SECONDS)


@pytest.mark.share(6)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("api", APIS)
def test_an_error_has_its_status_before_the_first_comment_and_is_an_event_behind_it(api: str, place: str) -> None:
    """The request waits behind another one until its own timeout is over."""
    path, body = body_of(api)

    @asynccontextmanager
    async def busy_server(seconds: float) -> AsyncIterator[httpx.AsyncClient]:
        service = fake_service(replace(FAKE, seconds_per_step=0.05), max_running_requests=1)
        async with server_of(place, None, seconds, service) as http:
            first = {**STREAM, "max_tokens": 400, "ignore_eos": True, "model": "fake"}
            async with http.stream("POST", CHAT, json=first) as response:
                pieces = response.aiter_bytes()
                await anext(pieces)
                yield http

    async def scenario() -> None:
        async with busy_server(LONG) as http:
            early = await http.post(path, json=body, headers={"x-request-timeout-ms": "50"})
            assert early.status_code == 408, early.text
        async with busy_server(SHORT) as http:
            late = await http.post(path, json=body, headers={"x-request-timeout-ms": "500"})
            assert late.status_code == 200
            *before, last = blocks_of(api, late.content)
            if api == "responses":
                assert b'"type":"response.failed"' in last
                last = before.pop()
            assert any(map(is_alive, before)) and b"[DONE]" not in late.content
            assert b"timeout" in last
            assert last.startswith(b'{"error":' if "ollama" in api else b"event: error\n")

    run(scenario(), SECONDS)


@pytest.mark.parametrize("place", PLACES)
def test_a_client_that_leaves_a_silent_stream_ends_its_request(place: str) -> None:
    gate = Gate()

    async def scenario() -> None:
        async with server_of(place, gate, SHORT) as http:
            path, body = body_of("chat")
            async with http.stream("POST", path, json=body) as response:
                async for _ in response.aiter_bytes():
                    break
            while 'chairlift_requests_finished_total{outcome="abort"} 1.0' not in (await http.get("/metrics")).text:
                await asyncio.sleep(0.01)
            gate.opened.set()

    run(scenario(), SECONDS)


# -- the router's own comments ----------------------------------------------------------------------------------------


async def hang(connection: Connection, request: ReceivedRequest) -> None:
    await asyncio.Event().wait()


async def comments_for_ever(connection: Connection, request: ReceivedRequest) -> None:
    await connection.stream_head()
    while True:
        await connection.piece(b": waiting, 7 ahead\n\n")
        await asyncio.sleep(SHORT)


async def comments_then_reset(connection: Connection, request: ReceivedRequest) -> None:
    await connection.stream_head()
    for _ in range(5):
        await connection.piece(b": PROCESSING\n\n")
        await asyncio.sleep(2 * SHORT)
    connection.reset()


async def complete(connection: Connection, request: ReceivedRequest) -> None:
    await connection.stream_head()
    for piece in (*DATA, DONE):
        await connection.piece(piece)
    await connection.end()


async def late_error(connection: Connection, request: ReceivedRequest) -> None:
    await asyncio.sleep(10 * SHORT)
    await connection.respond({"error": {"message": "n is wrong", "code": "bad", "type": "x", "param": "n"}}, 422)


def without_comments(content: bytes) -> bytes:
    return b"".join(block + b"\n\n" for block in content.split(b"\n\n") if block and not block.startswith(b":"))


def first_byte_seconds(fleet: RoutedFleet) -> float | None:
    timeline = fleet.running.router.timelines.log.entries()[-1]
    assert isinstance(timeline, RequestTimeline)
    seconds: float | None = timeline.as_json()["first_byte_seconds"]
    return seconds


def test_a_replica_that_is_lost_behind_comments_is_replaced_without_a_trace() -> None:
    async def scenario() -> None:
        async with routed(comments_then_reset, complete, **pings()) as fleet:
            contents = [(await fleet.post(STREAM)).content for _ in range(2)]
            assert {len(replica.requests) for replica in fleet.replicas} <= {1, 2}
            assert sum(len(replica.requests) for replica in fleet.replicas) >= 3
            assert [without_comments(each) for each in contents] == [b"".join((*DATA, DONE))] * 2
            assert any(b": PROCESSING\n\n" in each for each in contents), "the replica's own comment passes"
            page = fleet.running.router.telemetry.metrics.render()
            assert b'router_attempts_total{outcome="success"} 2' in page

    run(scenario(), SECONDS)


@pytest.mark.parametrize("script", [hang, comments_for_ever])
def test_comments_of_other_servers_do_not_stop_the_limit_of_the_first_token(script: Any) -> None:
    async def scenario() -> None:
        limits = AttemptLimits(first_token_timeout_seconds=0.2, max_attempts=1)
        async with routed(script, attempts=limits, **pings()) as fleet:
            response = await fleet.post(STREAM)
            assert response.status_code == 200
            [(name, data)] = events(response.text)
            assert (name, data["error"]["code"], data["error"]["retryable"]) == ("error", "replica_timeout", True)
            assert (b": waiting, 7 ahead\n\n" in response.content) == (script is comments_for_ever)
            assert response.content.startswith(b": waiting"), response.content
        async with routed(script, attempts=limits, **pings(LONG)) as fleet:
            assert (await fleet.post(STREAM)).status_code == 504

    run(scenario(), SECONDS)


def test_a_replica_whose_engine_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine in a thread of its server cannot be ended, so the server's comments would go on for ever."""
    gate = Gate()
    monkeypatch.setattr(InlineClient, "is_hanging", property(lambda client: gate.reached.is_set()))

    async def scenario() -> None:
        limits = AttemptLimits(first_token_timeout_seconds=0.05, max_attempts=1)
        async with (
            served_replica(hook=gate, sse_ping_interval=SHORT) as url,
            running_router([url], kind=ReplicaKind.CHAIRLIFT, models=("fake",), attempts=limits, **pings()) as router,
            httpx.AsyncClient(base_url=router.url, timeout=20) as http,
        ):  # fmt: skip
            know_weights(router, ("w",), "fake")  # only then it is known as a Chairlift server
            response = await http.post(CHAT, json={**STREAM, "model": "fake"})
            [(name, data)] = events(response.text)
            assert (name, data["error"]["code"]) == ("error", "replica_timeout")
            gate.opened.set()

    run(scenario(), SECONDS)


def test_comments_of_other_servers_do_not_stop_the_limit_between_two_tokens() -> None:
    async def then_comments(connection: Connection, request: ReceivedRequest) -> None:
        await connection.stream_head()
        await connection.piece(DATA[0])
        while True:
            await connection.piece(b": more\n\n")
            await asyncio.sleep(SHORT)

    async def scenario() -> None:
        limits = AttemptLimits(inter_token_timeout_seconds=0.2)
        async with routed(then_comments, attempts=limits, **pings()) as fleet:
            content = (await fleet.post(STREAM)).content
            assert DATA[0] + b": generating\n\n" in content
            assert b"event: error" in content and content.count(b"event: error") == 1

    run(scenario(), SECONDS)


def test_comments_are_no_first_byte() -> None:
    async def late(connection: Connection, request: ReceivedRequest) -> None:
        await asyncio.sleep(20 * SHORT)
        await complete(connection, request)

    async def scenario() -> None:
        async with routed(late, **pings()) as fleet:
            assert (await fleet.post(STREAM)).content.startswith(b": waiting\n\n")
            assert (first_byte_seconds(fleet) or 0.0) >= 20 * SHORT * 0.9

    run(scenario(), SECONDS)


def test_an_error_response_behind_a_comment_is_the_last_event() -> None:
    async def scenario() -> None:
        async with routed(late_error, **pings()) as fleet:
            response = await fleet.post(STREAM)
            [(name, data)] = events(response.text)
            assert response.status_code == 200 and name == "error"
            assert data["error"] == {"message": "n is wrong", "code": "bad", "type": "x", "param": "n"}
            assert response.headers["content-type"].startswith("text/event-stream")
        async with routed(late_error, **pings(LONG)) as fleet:
            assert (await fleet.post(STREAM)).status_code == 422

    run(scenario(), SECONDS)


def test_a_stream_that_goes_on_elsewhere_has_comments_while_it_waits() -> None:
    async def silent(connection: Connection) -> None:
        await asyncio.sleep(10 * SHORT)
        connection.reset()

    async def scenario() -> None:
        async with (
            scripted(token_stream(4, silent)) as one, scripted(token_stream(10)) as two,
            running_router([one.url, two.url], kind=ReplicaKind.CHAIRLIFT, **pings()) as router,
            httpx.AsyncClient(base_url=router.url, timeout=10) as http,
        ):  # fmt: skip
            know_weights(router)
            contents = [(await http.post(CHAT, json=STREAM)).content for _ in range(2)]
            cut = next(each for each in contents if b": generating\n\n" in each)
            chunk_id = cut.partition(b'"id":"')[2].partition(b'"')[0]
            expected = [client_event(number, chunk_id=chunk_id, is_last=number == 9) for number in range(10)]
            assert without_comments(cut) == b"".join([*expected, DONE])

    run(scenario(), SECONDS)


def test_a_request_that_is_held_has_comments_and_then_the_error_or_its_response() -> None:
    async def scenario() -> None:
        async with routed(hold_timeout=0.2, **pings()) as fleet:
            response = await fleet.post(STREAM)
            [(name, data)] = events(response.text)
            assert response.status_code == 200 and response.content.startswith(b": waiting for a replica\n\n")
            assert name == "error" and "no replica is ready" in data["error"]["message"]
            assert not fleet.running.router.open_proxies and fleet.running.router.admission.open_requests == 0
        async with routed(hold_timeout=0.05, **pings(LONG)) as fleet:
            assert (await fleet.post(STREAM)).status_code == 503

    run(scenario(), SECONDS)


@pytest.mark.parametrize(
    "headers", [{"content_type": "application/json"}, {"content_type": "text/event-stream", "content_encoding": "x"}]
)
def test_a_response_that_is_no_stream_of_events_is_an_error_behind_a_comment(headers: dict[str, str]) -> None:
    async def late_whole(connection: Connection, request: ReceivedRequest) -> None:
        await asyncio.sleep(10 * SHORT)
        await connection.head(200, **headers)
        await connection.piece(b'{"a": 1}')
        await connection.end()

    async def scenario() -> None:
        async with routed(late_whole, **pings()) as fleet:
            response = await fleet.post(STREAM)
            [(name, data)] = events(response.text)
            assert name == "error" and data["error"]["code"] == "replica_failed"
            assert "content-encoding" not in response.headers

    run(scenario(), SECONDS)


def test_a_replica_that_does_not_stream_gets_no_comment_into_its_body() -> None:
    async def slow_whole(connection: Connection, request: ReceivedRequest) -> None:
        await connection.head(200, content_type="application/json")
        for piece in (b"{", b'"a": 1}'):
            await asyncio.sleep(10 * 0.02)
            await connection.piece(piece)
        await connection.end()

    async def scenario() -> None:
        async with routed(slow_whole, **pings(0.15)) as fleet:
            response = await fleet.post(STREAM)
            assert response.json() == {"a": 1} and response.headers["content-type"] == "application/json"

    run(scenario(), SECONDS)

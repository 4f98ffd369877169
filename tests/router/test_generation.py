"""GenerationRoute: sessions, limits of tenants, headers for administrators, and requests without replicas."""

import asyncio
import hashlib
from typing import Any

import httpx
import pytest

from chairlift.router.attempts.actions import PickReplica
from chairlift.router.endpoint import Endpoint, ReplicaKind
from chairlift.router.live.request_timelines import RequestTimeline
from chairlift.router.model_aliases_and_canaries import ModelRoutes
from chairlift.web.admission import AdmissionLimits
from chairlift.web.auth.api_keys import KeyRing, read_keys
from chairlift.web.auth.principal import ADMIN, USER, Principal
from chairlift.web.service.http_config import HttpConfig
from chairlift.web.tenant_limits import TenantLimits
from support_request_proxy import DONE, text_event
from support_router import CHAT, COMPLETIONS, HELLO, Connection, ReceivedRequest, scripted
from support_router_app import complete, routed
from support_server import run


async def full(connection: Connection, request: ReceivedRequest) -> None:
    await connection.respond({"error": {"message": "full"}}, 429, retry_after="7")


async def invalid(connection: Connection, request: ReceivedRequest) -> None:
    await connection.respond({"error": {"message": "bad"}}, 400)


def keys_of(*principals: Principal) -> KeyRing:
    return KeyRing({hashlib.sha256(each.tenant.encode()).digest(): each for each in principals})


def limited(**limits: Any) -> dict[str, Any]:
    return {"http": HttpConfig(tenant=TenantLimits(**limits))}


# -- sessions and models ----------------------------------------------------------------------------------------------


def test_an_alias_reaches_its_pool_and_a_canary_keeps_sessions() -> None:
    async def scenario() -> None:
        routes = ModelRoutes.parse(["alias=m", "canary=m:50,gone:50"])
        async with routed(complete, routes=routes) as fleet:
            for model in ("alias", "canary", "m"):
                response = await fleet.post({**HELLO, "model": model})
                assert response.json()["model"] == model, "the name in the request, as a server repeats it"
                assert fleet.received()[-1].fields["model"] == "m"
                assert (await fleet.post({**HELLO, "model": model}, "/v1/embeddings")).json()["model"] == model
            unknown = await fleet.post({**HELLO, "model": "x"})
            assert unknown.status_code == 404
            error = unknown.json()["error"]
            assert error["code"] == "model_not_found" and "alias, canary, m" in error["message"]

    run(scenario())


# -- headers for administrators ---------------------------------------------------------------------------------------


@pytest.mark.share(3)
@pytest.mark.parametrize(("principal", "is_shown"), [
    (None, True), (Principal("t", frozenset({USER})), False), (Principal("t", frozenset({USER, ADMIN})), True),
])  # fmt: skip
@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
def test_only_administrators_see_the_replica(principal: Principal | None, is_shown: bool, path: str) -> None:
    async def scenario() -> None:
        keys = None if principal is None else keys_of(principal)
        async with routed(full, complete, keys=keys) as fleet:
            attempts = set()
            for _ in range(2):
                response = await fleet.post(HELLO, path, authorization="Bearer t")
                assert response.status_code == 200, response.text
                if is_shown:
                    assert response.headers["x-chairlift-replica"] == fleet.replicas[1].url
                    attempts.add(response.headers["x-chairlift-attempts"])
                else:
                    assert not [name for name in response.headers if name.startswith("x-chairlift")]
            assert attempts == ({"1", "2"} if is_shown else set())

    run(scenario())


# -- limits of tenants ------------------------------------------------------------------------------------------------


def test_requests_of_a_minute_are_limited_by_tenant() -> None:
    async def scenario() -> None:
        keys = keys_of(Principal("a"), Principal("b"))
        async with routed(complete, keys=keys, **limited(tenant_requests_per_minute=2)) as fleet:
            for tenant in ("a", "b"):
                statuses = [(await fleet.post(HELLO, authorization=f"Bearer {tenant}")).status_code for _ in range(3)]
                assert statuses == [200, 200, 429]
            rejected = await fleet.post(HELLO, authorization="Bearer a")
            assert rejected.json()["error"]["code"] == "rate_limited" and int(rejected.headers["retry-after"]) >= 1

    run(scenario())


def test_a_request_that_full_replicas_reject_is_refunded_and_an_invalid_one_counts() -> None:
    async def scenario() -> None:
        limits = limited(tenant_requests_per_minute=2, tenant_tokens_per_minute=100)
        async with routed(full, full, **limits) as fleet:
            for _ in range(5):
                response = await fleet.post({**HELLO, "max_tokens": 50})
                assert response.status_code == 429 and response.json()["error"]["code"] == "overloaded"
                assert response.headers["retry-after"] == "7"
        async with routed(invalid, **limits) as fleet:
            statuses = [(await fleet.post({**HELLO, "max_tokens": 90})).status_code for _ in range(3)]
            assert statuses == [400, 400, 429], "its tokens are refunded, the request is not"

    run(scenario())


@pytest.mark.parametrize("policy", ["round_robin", "prefix"])
def test_tokens_of_a_minute_are_limited_with_the_prompts(policy: str) -> None:
    async def scenario() -> None:
        prompt = {"model": "m", "prompt": "word " * 2000, "max_tokens": 1}
        async with routed(complete, policy=policy, **limited(tenant_tokens_per_minute=1000)) as fleet:
            assert (await fleet.post({**HELLO, "max_tokens": 900})).status_code == 200
            assert (await fleet.post({**HELLO, "max_tokens": 900})).status_code == 200, "what was not used is returned"
            assert (await fleet.post(prompt, COMPLETIONS)).status_code == 429, "its 2500 tokens exceed what is left"
        async with routed(complete, policy=policy, **limited(tenant_tokens_per_minute=1000)) as fleet:
            assert (await fleet.post(prompt, COMPLETIONS)).status_code == 200, "a full minute takes any request"
            rejected = await fleet.post({**HELLO, "max_tokens": 1})
            assert rejected.status_code == 429 and rejected.json()["error"]["code"] == "rate_limited"
        assert len(fleet.received()) == 1

    run(scenario())


@pytest.mark.share(2)
@pytest.mark.parametrize(("usage", "is_rejected"), [
    (b"", True), (b"null", True), (b'{"prompt_tokens":80,"completion_tokens":20}', True),
    (b'{"prompt_tokens":8,"completion_tokens":2}', False),
])  # fmt: skip
def test_the_tokens_of_other_servers_streams_are_charged(usage: bytes, is_rejected: bool) -> None:
    async def stream(connection: Connection, request: ReceivedRequest) -> None:
        await connection.stream_head()
        for number in range(90):
            await connection.piece(text_event(number))
        if usage:
            await connection.piece(b'data: {"choices":[],"usage":%s}\n\n' % usage)
        await connection.piece(DONE)
        await connection.end()

    async def scenario() -> None:
        async with routed(stream, **limited(tenant_tokens_per_minute=100)) as fleet:
            first = await fleet.post({**HELLO, "stream": True})
            assert first.status_code == 200 and first.content.endswith(DONE)
            second = await fleet.post({**HELLO, "stream": True, "max_tokens": 70})
            assert second.status_code == (429 if is_rejected else 200), second.text

    run(scenario())


def test_open_requests_are_limited_and_end_with_the_client() -> None:
    begun = asyncio.Queue[None]()

    async def hang(connection: Connection, request: ReceivedRequest) -> None:
        begun.put_nowait(None)
        await asyncio.Event().wait()

    async def scenario() -> None:
        async with routed(hang, **limited(tenant_max_open_requests=1)) as fleet:
            for _ in range(2):
                posting = asyncio.create_task(fleet.post(HELLO))
                await begun.get()
                assert (await fleet.post(HELLO)).status_code == 429
                posting.cancel()
                await asyncio.gather(posting, return_exceptions=True)
                while fleet.running.router.open_proxies:
                    await asyncio.sleep(0.002)
                assert fleet.running.router.admission.open_requests == 0

    run(scenario())


def test_a_full_queue_rejects_a_body_before_it_is_parsed() -> None:
    async def scenario() -> None:
        limits = AdmissionLimits(max_waiting_bytes=100)
        async with routed(complete, http=HttpConfig(admission=limits)) as fleet:
            permit = fleet.running.router.admission.admit(1)
            response = await fleet.post(b"{" + b" " * 200, content_type="application/json")
            assert response.status_code == 429 and "request bodies of" in response.json()["error"]["message"]
            permit.end()
            assert (await fleet.post(HELLO)).status_code == 200

    run(scenario())


# -- without replicas -------------------------------------------------------------------------------------------------


def test_without_a_ready_replica_a_request_fails_at_once_and_before_its_body_is_read() -> None:
    async def scenario() -> None:
        async with routed() as fleet:
            response = await asyncio.wait_for(fleet.post(HELLO), 1)
            assert response.status_code == 503 and int(response.headers["retry-after"]) >= 1
            assert response.json()["error"]["message"].startswith("no replica is ready")
            host, port = fleet.running.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            headers = b"host: localhost\r\ncontent-type: application/json\r\ncontent-length: 1000"
            writer.write(b"POST %s HTTP/1.1\r\n%s\r\n\r\n{" % (CHAT.encode(), headers))
            assert (await asyncio.wait_for(reader.readuntil(b"\r\n"), 1)).startswith(b"HTTP/1.1 503")
            writer.close()

    run(scenario())


def test_a_pool_without_a_replica_that_may_be_used_is_503_with_a_time() -> None:
    async def scenario() -> None:
        async with routed(complete, complete) as fleet:
            for replica in fleet.replicas:
                fleet.running.router.drain_replica(replica.url)
            for path in (CHAT, "/v1/embeddings"):
                response = await fleet.post(HELLO, path)
                assert response.status_code == 503 and int(response.headers["retry-after"]) >= 1

    run(scenario())


def test_a_draining_router_rejects_requests() -> None:
    async def scenario() -> None:
        async with routed(complete, keys=read_keys(None, {"CHAIRLIFT_API_KEY": "k"})) as fleet:
            await fleet.running.drain()
            response = await fleet.post(HELLO, authorization="Bearer k")
            assert response.status_code == 503 and response.json()["error"]["code"] == "draining"

    run(scenario())


# -- requests without a replica ---------------------------------------------------------------------------------------


def test_a_request_waits_for_the_first_replica_and_is_served_by_it() -> None:
    async def scenario() -> None:
        async with scripted(complete) as replica, routed(hold_timeout=5) as fleet:
            router = fleet.running.router
            assert (await fleet.http.get("/readyz")).status_code == 200
            for path, body in ((CHAT, HELLO), ("/tokenize", {"model": "m", "prompt": "x"})):
                router.replicas.update([], router.clock.now())
                waiting = asyncio.create_task(fleet.post(body, path))
                while router.hold.num_requests == 0:
                    await asyncio.sleep(0.001)
                assert router.num_open_requests == 1 and not replica.requests
                endpoint = Endpoint(url=replica.url, kind=ReplicaKind.OPENAI, models=("m",))
                router.replicas.update([endpoint], router.clock.now())
                assert (await waiting).status_code == 200
                assert replica.requests.pop().target == path
            (timeline,) = router.timelines.log.since(0)  # of the generation
            assert isinstance(timeline, RequestTimeline)
            assert [wait[0] for wait in timeline.as_json()["waits"]] == ["held"]

    run(scenario())


def test_a_held_request_ends_with_its_client_and_after_the_hold_time() -> None:
    async def scenario() -> None:
        async with routed(hold_timeout=600) as fleet:
            with pytest.raises(httpx.ReadTimeout):
                await fleet.http.post(CHAT, json=HELLO, timeout=0.1)
            while fleet.running.router.hold.num_requests:
                await asyncio.sleep(0.001)
        async with routed(hold_timeout=0.1) as fleet:
            hold = fleet.running.router.hold
            response = await fleet.post()
            assert response.status_code == 503 and response.headers["retry-after"] == "1"
            assert response.json()["error"]["message"].startswith("no replica is ready; one is being started")
            assert (await fleet.http.get("/other")).status_code == 503 and hold.num_requests == 0

    run(scenario())


def test_what_is_not_known_to_need_a_model_wakes_no_replica() -> None:
    async def scenario() -> None:
        async with routed(hold_timeout=600) as fleet:
            wakes: list[bool] = []
            fleet.running.router.hold.on_hold = lambda: wakes.append(True)
            response = await fleet.post(HELLO, "/nonsense/path")
            assert response.status_code == 503 and "retry-after" in response.headers
            assert wakes == []

    run(scenario())


@pytest.mark.parametrize(("path", "body"), [(CHAT, HELLO), ("/tokenize", {"model": "m", "prompt": "x"})])
def test_the_timeout_of_a_held_request_counts_from_its_arrival(path: str, body: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with routed(hold_timeout=600) as fleet:
            response = await fleet.post({**body, "timeout": 0.05}, path)
            assert response.json()["error"]["code"] == "timeout"
            assert fleet.running.router.hold.num_requests == fleet.running.router.admission.open_requests == 0

    run(scenario())


def test_a_model_that_the_last_replicas_did_not_serve_is_not_held() -> None:
    async def scenario() -> None:
        async with routed(complete, hold_timeout=5) as fleet:
            router = fleet.running.router
            assert (await fleet.post()).status_code == 200
            router.replicas.update([], router.clock.now())
            assert (await fleet.post({**HELLO, "model": "other"})).status_code == 404
            models = (await fleet.http.get("/v1/models")).json()["data"]
            assert [model["id"] for model in models] == ["m"]

    run(scenario())


def test_held_requests_end_when_the_router_stops() -> None:
    async def scenario() -> None:
        async with routed(hold_timeout=5) as fleet:
            router = fleet.running.router
            waiting = asyncio.create_task(fleet.post())
            while router.hold.num_requests == 0:
                await asyncio.sleep(0.001)
            assert router.abort_all() == 1
            assert (await waiting).status_code == 503

    run(scenario())


@pytest.mark.parametrize("kind", ReplicaKind)
def test_a_replica_whose_weights_are_not_known_yet_is_waited_for_and_one_of_another_server_never_has_any(
    kind: ReplicaKind,
) -> None:
    async def scenario() -> None:
        async with routed(complete) as fleet:
            router = fleet.running.router
            (url,) = (each.url for each in fleet.replicas)
            router.replicas.update([Endpoint(url=url, kind=kind, models=("m",))], router.clock.now())
            resume = router.no_replica("m", PickReplica(2, frozenset(), "some weights"))
            assert resume.ready == frozenset()
            assert (resume.retry_after is None) is (kind is ReplicaKind.OPENAI)
            first = router.no_replica("m", PickReplica(1, frozenset(), ""))
            assert {name for name, _ in first.ready} == {url} and first.retry_after is None
            assert not router.no_replica("other", PickReplica(1, frozenset(), "")).ready

    run(scenario())

"""probe_replica: what Chairlift, foreign and broken servers answer about health, load, models and version."""

import asyncio
import gzip
from collections.abc import Mapping

import aiohttp
import pytest

from chairlift import __version__
from chairlift.router.endpoint import Endpoint, ReplicaKind
from chairlift.router.health.probe import (
    MODELS_INTERVAL_SECONDS,
    ProbeMemory,
    ProbeResult,
    ReplicaClient,
    probe_replica,
)
from support_scripted_replica import TIMEOUT_SECONDS, Answer, ScriptedReplica, cut, drip, flood, reset, response, stall
from support_server import fake_server
from support_shares import for_each

LOAD = {"state": "ready", "instance_id": "p1", "running_requests": 3, "waiting_tokens": 40, "fingerprint": "f1"}
MODELS = {"object": "list", "data": [{"id": "m"}]}

CHAIRLIFT: Mapping[str, Answer] = {
    "/readyz": response(200, {"state": "ready"}),
    "/load": response(200, LOAD),
    "/version": response(200, {"version": "1.2.3"}),
    "/v1/models": response(200, MODELS),
}
VLLM: Mapping[str, Answer] = {
    "/health": response(200),
    "/load": response(200, {"server_load": 2}),
    "/version": response(200, {"version": "0.11.0"}),
    "/v1/models": response(200, {"data": [{"id": "q", "root": "q", "parent": None}, {"id": "sql", "parent": "q"}]}),
}
LLAMA_CPP: Mapping[str, Answer] = {
    "/health": response(200, {"status": "ok"}),
    "/v1/models": response(200, {"object": "list", "models": [], "data": [{"id": "g.gguf", "meta": {}}]}),
}
OLLAMA: Mapping[str, Answer] = {"/": response(200, b"Ollama is running"), "/v1/models": response(200, MODELS)}

CLIENT_TIMEOUT = 0.25


def probe(
    answers: Mapping[str, Answer], *, times: int = 1, memory: ProbeMemory | None = None, now: float = 0.0,
    kind: ReplicaKind = ReplicaKind.AUTO, timeout: float = TIMEOUT_SECONDS,
) -> tuple[list[ProbeResult], ScriptedReplica]:  # fmt: skip
    """Probe a server and return the results and the server."""

    async def scenario() -> tuple[list[ProbeResult], ScriptedReplica]:
        async with ScriptedReplica(answers) as server, aiohttp.ClientSession() as session:
            known = memory or ProbeMemory()
            client = ReplicaClient(
                session=session, endpoint=Endpoint(url=server.url, kind=kind), timeout_seconds=timeout,
                headers={"authorization": "Bearer key"},
            )  # fmt: skip
            results = [await probe_replica(client, known, now + number) for number in range(times)]
            return results, server

    return asyncio.run(asyncio.wait_for(scenario(), 2 * TIMEOUT_SECONDS))


def test_a_chairlift_server_tells_everything() -> None:
    (first, second), server = probe(CHAIRLIFT, times=2, now=7.0)
    assert first.is_success and first.reason == "/readyz answers 200" and first.reported_state == "ready"
    assert (first.kind, first.version) == (ReplicaKind.CHAIRLIFT, "1.2.3")
    assert first.models is not None and first.models.names == ("m",)
    assert first.load is not None and first.load.at_seconds == 7.0
    assert (first.load.incarnation, first.load.running_requests, first.load.waiting_tokens) == ("p1", 3, 40)
    assert server.paths == ["/readyz", "/load", "/v1/models", "/version", "/readyz", "/load"]
    assert second.load is not None and second.models is None, "models are asked for every minute"
    assert all("authorization: bearer key" in head.lower() for head in server.headers)


@pytest.mark.parametrize(
    ("answers", "path", "names", "version"),
    [
        (VLLM, "/health", ("q", "sql"), "0.11.0"),
        (LLAMA_CPP, "/health", ("g.gguf",), ""),
        (OLLAMA, "/v1/models", ("m",), ""),
    ],
)
def test_foreign_servers_are_known_by_their_routes(
    answers: Mapping[str, Answer], path: str, names: tuple[str, ...], version: str
) -> None:
    (first, second), server = probe(answers, times=2)
    assert first.is_success and first.reason == f"{path} answers 200" and first.reported_state is None
    assert first.models is not None and first.models.names == names
    assert (first.kind, first.version, first.load) == (ReplicaKind.OPENAI, version, None)
    assert server.paths[-1] == path and second.is_success, "the second probe asks the right path at once"
    assert server.paths.count("/load") == 1


def test_a_lora_adapter_of_vllm_is_one() -> None:
    (result,), _ = probe(VLLM)
    assert result.models is not None and result.models.adapters == {"sql"}


def test_a_new_process_is_asked_for_its_models_again() -> None:
    async def scenario() -> list[str]:
        async with ScriptedReplica(CHAIRLIFT) as server, aiohttp.ClientSession() as session:
            client = ReplicaClient(session=session, endpoint=Endpoint(url=server.url), timeout_seconds=TIMEOUT_SECONDS)
            memory = ProbeMemory()
            await probe_replica(client, memory, 0.0)
            server.answers["/load"] = response(200, {**LOAD, "instance_id": "p2"})
            server.paths.clear()
            result = await probe_replica(client, memory, 1.0)
            assert result.load is not None and result.load.incarnation == "p2"
            assert result.models is not None
            await probe_replica(client, memory, MODELS_INTERVAL_SECONDS)
            await probe_replica(client, memory, MODELS_INTERVAL_SECONDS + 1)
            return server.paths

    paths = asyncio.run(scenario())
    assert paths == [
        "/readyz", "/load", "/v1/models", "/version", "/readyz", "/load", "/readyz", "/load", "/v1/models", "/version",
    ]  # fmt: skip


@for_each(
    ("answer", "reason"),
    [
        (response(500), "/readyz answers 500"),
        (response(500, b"{", kind="application/json"), "/readyz answers 500"),
        (response(502, b"<html>", kind="text/html"), "/readyz answers 502"),
        (response(401), "/readyz answers 401; check the API key of the replica"),
        (response(302, headers="location: http://127.0.0.1:1/\r\n"), "/readyz answers 302"),
        (response(503), "/readyz answers 503"),
        (response(503, b"nonsense", kind="application/json"), "/readyz answers 503"),
        (response(200, b"{nonsense", kind="application/json"), "/readyz answers 200, but its JSON cannot be read"),
        (response(200, b"[" * 60_000, kind="application/json"), "/readyz answers 200, but its JSON cannot be read"),
        (response(200, b" " * 70_000), "the answer to /readyz is longer than 65536 bytes"),
        (b"HTTP/1.1 nonsense\r\n\r\n", "/readyz failed: ClientResponseError"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "/readyz failed: ClientResponseError"),
        (flood, "the answer to /readyz is longer than 65536 bytes"),
        (cut, "/readyz failed: ClientPayloadError"),
        (reset, "/readyz failed: "),
    ],
)
def test_a_broken_answer_is_a_failed_probe(answer: Answer, reason: str) -> None:
    (result,), server = probe({**CHAIRLIFT, "/readyz": answer})
    assert not result.is_success and result.reason.startswith(reason) and "\n" not in result.reason
    assert result.load is None and result.models is None and set(server.paths) == {"/readyz"}


@pytest.mark.parametrize("answer", [stall, drip])
def test_a_slow_answer_is_a_failed_probe(answer: Answer) -> None:
    (result,), _ = probe({**CHAIRLIFT, "/readyz": answer}, timeout=CLIENT_TIMEOUT)
    assert not result.is_success and "within 0.25 s" in result.reason


def test_a_closed_port_is_a_failed_probe() -> None:
    async def scenario() -> ProbeResult:
        async with ScriptedReplica() as server:
            pass
        async with aiohttp.ClientSession() as session:
            client = ReplicaClient(session=session, endpoint=Endpoint(url=server.url), timeout_seconds=TIMEOUT_SECONDS)
            return await probe_replica(client, ProbeMemory(), 0.0)

    result = asyncio.run(scenario())
    assert not result.is_success and result.reason == "/readyz failed: no connection: Connection refused"


def test_a_server_of_another_kind_is_named() -> None:
    (result,), server = probe({"/": response(200, b"a web page")})
    assert not result.is_success and "is the URL that of an OpenAI-compatible server?" in result.reason
    assert server.paths == ["/readyz", "/health", "/v1/models"]


@pytest.mark.parametrize("state", ["starting", "draining", "dead", "stopped"])
def test_a_replica_says_itself_that_it_is_not_ready(state: str) -> None:
    (result,), _ = probe({**CHAIRLIFT, "/readyz": response(503, {"state": state})})
    assert not result.is_success and result.reported_state == state
    assert result.reason == f"/readyz answers 503: the replica is {state}"


def test_llama_cpp_that_loads_its_model_is_not_healthy_yet() -> None:
    (result,), _ = probe({**LLAMA_CPP, "/health": response(503, {"error": {"message": "Loading model"}})})
    assert not result.is_success and result.reported_state is None and result.reason == "/health answers 503"


def test_a_rate_limit_is_a_sign_of_life() -> None:
    (result,), _ = probe({"/v1/models": response(429, {"error": "slow down"})})
    assert result.is_success and result.models is None


def test_a_text_of_a_foreign_readyz_is_enough_and_a_chairlift_state_is_demanded_of_chairlift() -> None:
    answers = {**VLLM, "/readyz": response(200, b"ok")}
    (result,), _ = probe(answers)
    assert result.is_success and result.kind is ReplicaKind.OPENAI
    (result,), _ = probe(answers, kind=ReplicaKind.CHAIRLIFT)
    assert not result.is_success and "JSON cannot be read" in result.reason
    (result,), _ = probe({**CHAIRLIFT, "/readyz": response(200, {"ok": 1})}, kind=ReplicaKind.CHAIRLIFT)
    assert not result.is_success and "without the state of a Chairlift server" in result.reason


@pytest.mark.parametrize("load", [stall, response(500), response(401), cut, drip])
def test_a_load_report_that_does_not_come_is_not_a_dead_replica(load: Answer) -> None:
    memory = ProbeMemory(kind=ReplicaKind.CHAIRLIFT)
    (result,), _ = probe({**CHAIRLIFT, "/load": load}, memory=memory, timeout=CLIENT_TIMEOUT)
    assert result.is_success and result.load is None and result.kind is ReplicaKind.CHAIRLIFT


@for_each(
    "body", [b"nonsense", b"[]", b"7", b'{"server_load":1}', b'{"state":"x","waiting_tokens":0,"running_requests":0}',
             b'{"state":"ready","waiting_tokens":-1,"running_requests":0}', b"[" * 60_000],
)  # fmt: skip
def test_a_load_report_that_is_nonsense_is_a_failed_probe_of_a_chairlift_server(body: bytes) -> None:
    answers = {**CHAIRLIFT, "/load": response(200, body, kind="application/json")}
    memory = ProbeMemory(kind=ReplicaKind.CHAIRLIFT)
    (result,), _ = probe(answers, memory=memory, kind=ReplicaKind.CHAIRLIFT)
    assert not result.is_success and result.reason.startswith("/load answers nonsense: ")


def test_another_kind_at_the_same_address_is_noticed() -> None:
    async def scenario() -> tuple[ProbeResult, ProbeResult]:
        async with ScriptedReplica(CHAIRLIFT) as server, aiohttp.ClientSession() as session:
            client = ReplicaClient(session=session, endpoint=Endpoint(url=server.url), timeout_seconds=TIMEOUT_SECONDS)
            memory = ProbeMemory()
            await probe_replica(client, memory, 0.0)
            server.answers = {"/readyz": response(500)}
            await probe_replica(client, memory, 1.0)
            server.answers = dict(VLLM)
            return await probe_replica(client, memory, 2.0), await probe_replica(client, memory, 3.0)

    first, second = asyncio.run(scenario())
    assert first.is_success and first.kind is second.kind is ReplicaKind.OPENAI
    assert first.models is not None and first.models.names == ("q", "sql")


@pytest.mark.parametrize("models", [response(200, b"nonsense"), response(500), cut, response(200, {"data": 7})])
def test_models_that_cannot_be_read_are_asked_for_again(models: Answer) -> None:
    (first, second), server = probe({**CHAIRLIFT, "/v1/models": models}, times=2)
    assert first.is_success and first.models is None and second.models is None
    assert server.paths.count("/v1/models") == 2


def test_nonsense_from_the_only_health_route_is_a_failed_probe() -> None:
    (result,), _ = probe({"/v1/models": response(200, {"data": 7})})
    assert not result.is_success and result.reason == "the answer to /v1/models has no list `data`"


@pytest.mark.parametrize("version", [response(200, b"x"), response(200, []), response(200, {"version": 7}), cut])
def test_a_version_that_cannot_be_read_is_unknown(version: Answer) -> None:
    (result,), _ = probe({**CHAIRLIFT, "/version": version})
    assert result.is_success and result.version == "" and result.models is not None


def test_an_explicit_kind_asks_no_foreign_server_for_its_load() -> None:
    (result,), server = probe(VLLM, kind=ReplicaKind.OPENAI)
    assert result.is_success and "/load" not in server.paths


def test_a_compressed_answer_is_not_unpacked() -> None:
    body = gzip.compress(b'{"state":"ready"}')
    bomb = response(200, body, kind="application/json", headers="content-encoding: gzip\r\n")
    (result,), server = probe({**CHAIRLIFT, "/readyz": bomb})
    assert not result.is_success and result.reason == "/readyz answers 200, but its JSON cannot be read"
    assert "accept-encoding: identity" in server.headers[0].lower()


def test_the_server_of_this_package_is_a_chairlift_server() -> None:
    async def scenario(url: str) -> ProbeResult:
        async with aiohttp.ClientSession() as session:
            client = ReplicaClient(session=session, endpoint=Endpoint(url=url), timeout_seconds=TIMEOUT_SECONDS)
            return await probe_replica(client, ProbeMemory(), 0.0)

    with fake_server() as server:
        result = asyncio.run(scenario(server.url))
    assert result.is_success and result.reported_state == "ready"
    assert (result.kind, result.version) == (ReplicaKind.CHAIRLIFT, __version__)
    assert result.load is not None and result.load.state == "ready" and result.load.kv_usage_ratio == 0
    assert result.models is not None and result.models.names

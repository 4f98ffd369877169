"""WebhookCluster over a real HTTP server: what it sends, what it believes, and what it does about failures."""

import asyncio
import json
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from chairlift.cluster import webhook
from chairlift.cluster.base import Cluster, ReplicaSpec
from chairlift.cluster.cluster_replica import ClusterReplica, PlacementState
from chairlift.cluster.webhook import WebhookCluster, WebhookConfig, parse_replicas
from chairlift.core.cluster_errors import ClusterDenied, ClusterFailed
from chairlift.core.errors import ConfigError
from support_certificates import CertificateAuthority
from support_shares import for_each

SPEC = ReplicaSpec(model="m", arguments=("--dtype", "float32"), environ={"KEY": "secret"}, num_gpus=1)
RUNNING = {"replica_id": "a", "state": "running"}
Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]] | None


class Program:
    """The operator's program: replicas, and the answers that come before the right ones; None is no answer."""

    def __init__(self, *answers: Answer, replicas: Any = ()) -> None:
        self.answers, self.replicas = list(answers), list(replicas)
        self.requests: list[web.Request] = []
        self.bodies: list[Any] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(request)
        if request.method == "POST":
            self.bodies.append(await request.json())
        answer = self.answers.pop(0) if self.answers else (200, self.replicas)
        if answer is None:
            await asyncio.sleep(30)
        assert answer is not None
        status, body, headers = (*answer, {})[:3]
        return web.Response(status=status, text=body if isinstance(body, str) else json.dumps(body), headers=headers)


@asynccontextmanager
async def serving(program: Program, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/hook", program.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    try:
        yield "{}://{}:{}/hook".format("http" if tls is None else "https", *runner.addresses[0])
    finally:
        await runner.cleanup()


def run(
    program: Program, scenario: Callable[[WebhookCluster], Awaitable[None]], query: str = "", **fields: Any
) -> None:
    async def with_server() -> None:
        async with serving(program) as url:
            config = WebhookConfig(url=url + query, **{"first_backoff": 0.001, **fields})
            async with WebhookCluster(config, random.Random(3)) as cluster:
                await scenario(cluster)

    asyncio.run(with_server())


def failing(program: Program, error: type[ClusterFailed], match: str, **fields: Any) -> None:
    async def scenario(cluster: WebhookCluster) -> None:
        with pytest.raises(error, match=match) as raised:
            await cluster.list()
        assert type(raised.value) is error

    run(program, scenario, **fields)


# -- what is sent ------------------------------------------------------------------------------------------------------


def test_the_list_is_what_the_program_answers(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0ken\n")
    body = [
        {"replica_id": "a", "url": "https://10.0.0.5:8000/", "state": "running", "age_seconds": 3, "version": "v",
         "node": "n", "replica_type": "large", "reason": "r", "unknown": [1]},
        {"replica_id": "b", "state": "pending", "url": None, "age_seconds": None},
    ]  # fmt: skip
    program = Program(replicas=body)

    async def scenario(cluster: WebhookCluster) -> None:
        protocol: Cluster = cluster
        assert list(await protocol.list()) == [
            ClusterReplica(
                replica_id="a", url="https://10.0.0.5:8000", state=PlacementState.RUNNING, age_seconds=3.0,
                version="v", node="n", replica_type="large", reason="r",
            ),
            ClusterReplica(replica_id="b", state=PlacementState.PENDING),
        ]  # fmt: skip

    run(program, scenario, "?pool=chat&x=", token_file=tmp_path / "token")
    (request,) = program.requests
    assert request.method == "GET" and request.query_string == "pool=chat&x="
    assert request.headers["authorization"] == "Bearer t0ken"


def test_scale_sends_target_remove_spec_and_a_key_of_its_own() -> None:
    program = Program((202, ""), (204, ""))

    async def scenario(cluster: WebhookCluster) -> None:
        await cluster.scale(SPEC, 3, remove=["a", "b"])
        await cluster.scale(SPEC, 3, remove=["a", "b"])

    run(program, scenario)
    spec = {
        "model": "m", "arguments": ["--dtype", "float32"], "environ": {"KEY": "secret"}, "num_cpus": 0, "num_gpus": 1,
        "replica_type": "", "version": SPEC.version,
    }  # fmt: skip
    assert program.bodies == [{"target": 3, "remove": ["a", "b"], "spec": spec}] * 2
    keys = [request.headers["idempotency-key"] for request in program.requests]
    assert len(set(keys)) == 2 and min(map(len, keys)) >= 16


def test_start_and_stop_are_scale_of_what_is_listed() -> None:
    states = ["running", "pending", "stopping", "failed"]
    program = Program(replicas=[{"replica_id": f"r{i}", "state": state} for i, state in enumerate(states)])

    async def scenario(cluster: WebhookCluster) -> None:
        await cluster.start(SPEC, 2)
        await cluster.stop(["r1", "r1", "r2", "r3", "unknown"])
        await cluster.stop(["r2", "unknown"])

    run(program, scenario)
    assert [(body["target"], body["remove"], body["spec"] is None) for body in program.bodies] == [
        (4, [], False), (1, ["r1"], True),
    ]  # fmt: skip


def test_nothing_comes_between_a_list_and_its_scale() -> None:
    program = Program(replicas=[RUNNING])

    async def scenario(cluster: WebhookCluster) -> None:
        await asyncio.gather(*(cluster.start(SPEC, 1) for _ in range(4)), cluster.scale(SPEC, 7))

    run(program, scenario)
    methods = [request.method for request in program.requests]
    assert "".join(each[0] for each in methods).replace("GP", "") == "P"


def test_tls_with_a_client_certificate(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path, "ca")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.file))
    tls.load_cert_chain(*authority.issue("server"))
    tls.verify_mode = ssl.CERT_REQUIRED
    certificate, key = authority.issue("client")

    async def scenario() -> None:
        async with serving(Program(replicas=[RUNNING]), tls) as url:
            config = WebhookConfig(url=url, ca_file=authority.file, cert_file=certificate, key_file=key)
            async with WebhookCluster(config) as cluster:
                assert len(await cluster.list()) == 1
            async with WebhookCluster(WebhookConfig(url=url, num_attempts=1)) as cluster:
                with pytest.raises(ClusterFailed, match="certificate"):
                    await cluster.list()

    asyncio.run(scenario())


# -- failures ----------------------------------------------------------------------------------------------------------


@for_each("failure", [(500, "x"), (503, "x"), (429, "x"), (409, "x"), (408, ""), None])
def test_a_failed_attempt_is_repeated_with_the_same_key(failure: Answer) -> None:
    program = Program(failure, failure, (202, ""))

    async def scenario(cluster: WebhookCluster) -> None:
        await cluster.scale(SPEC, 1)

    run(program, scenario, timeout_seconds=0.05 if failure is None else 10.0)
    assert len(program.bodies) == 3 and program.bodies[0] == program.bodies[2]
    assert len({request.headers["idempotency-key"] for request in program.requests}) == 1


def test_the_last_failure_is_named_with_the_number_of_attempts() -> None:
    program = Program(*[(503, "down for maintenance")] * 3)
    failing(program, ClusterFailed, "after 2 attempts: .*503: down for maintenance", num_attempts=2)
    assert len(program.requests) == 2
    failing(Program((429, "slow down")), ClusterFailed, "after 1 attempt: it answers status 429", num_attempts=1)


def test_retry_after_is_followed_up_to_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "MAX_RETRY_AFTER_SECONDS", 0.5)
    delays: list[float] = []
    sleep = asyncio.sleep

    async def record(seconds: float) -> None:
        delays.append(seconds)
        await sleep(0)

    dates = ("7", "0.25", "Thu, 01 Jan 2026 00:00:00 GMT", "-3", "nan")
    program = Program(*((429, "", {"retry-after": text}) for text in dates))

    async def scenario(cluster: WebhookCluster) -> None:
        monkeypatch.setattr(asyncio, "sleep", record)
        await cluster.list()
        monkeypatch.setattr(asyncio, "sleep", sleep)

    run(program, scenario, num_attempts=6)
    assert delays[:2] == pytest.approx([0.5, 0.25], abs=0.05) and len(delays) == 5 and max(delays[2:]) < 0.1


@pytest.mark.parametrize("status", [401, 403])
def test_denied_names_the_status_and_the_token_file_and_is_not_repeated(status: int, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("x")
    program = Program((status, "no"), (200, []))
    failing(program, ClusterDenied, f"permit GET: status {status}: no; token file: {token}", token_file=token)
    assert len(program.requests) == 1


@pytest.mark.parametrize(("status", "body"), [(404, "?"), (302, ""), (200, {}), (200, "text"), (204, "")])
def test_another_answer_than_a_list_is_named_and_not_repeated(status: int, body: Any) -> None:
    program = Program((status, body))
    failing(program, ClusterFailed, f"answers no list of replicas: status {status}")
    assert len(program.requests) == 1


def test_a_target_that_is_refused_is_an_error() -> None:
    async def scenario(cluster: WebhookCluster) -> None:
        with pytest.raises(ClusterFailed, match="does not scale: status 400: too many"):
            await cluster.scale(SPEC, 9)

    run(Program((400, "too many")), scenario)


def test_a_missing_token_file_is_an_error(tmp_path: Path) -> None:
    failing(Program(), ClusterFailed, "cannot read the token file", token_file=tmp_path / "none", num_attempts=1)


# -- what is believed --------------------------------------------------------------------------------------------------


@for_each(
    ("fields", "message"),
    [
        ({"replica_id": ""}, "has no replica_id"), ({"replica_id": None}, "has no replica_id"),
        ({"replica_id": 7}, "replica_id of replica 0 must be one line .* got 7"),
        ({"replica_id": "x" * 257}, "at most 256 characters"), ({"replica_id": "a\nb"}, "one line"),
        ({"state": "ready"}, "state of replica 'a' must be one of pending, running, stopping, failed, got 'ready'"),
        ({"state": None}, "got None"), ({"state": ["running"]}, "state of"),
        ({"age_seconds": -1}, "age_seconds of replica 'a'"), ({"age_seconds": "1"}, "got '1'"),
        ({"age_seconds": True}, "got True"), ({"age_seconds": float("inf")}, "got inf"),
        ({"url": "10.0.0.5:8000"}, "url of replica 'a' must be an http"), ({"url": "ftp://h"}, "url"),
        ({"url": "http://"}, "url"), ({"url": "http://h:99999"}, "url"), ({"url": "http://a b"}, "url"),
        ({"url": ["http://h"]}, "url of"), ({"version": 1}, "version of"), ({"node": {}}, "node of"),
        ({"replica_type": []}, "replica_type of"), ({"reason": "x" * 5000}, "at most 4096"),
    ],
)  # fmt: skip
def test_a_field_that_makes_no_sense_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_replicas([RUNNING | fields])


def test_lists_that_make_no_sense_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="two replicas have the same replica_id"):
        parse_replicas([RUNNING, RUNNING])
    with pytest.raises(ValueError, match="replica 1 is not an object but 'b'"):
        parse_replicas([RUNNING, "b"])
    monkeypatch.setattr(webhook, "MAX_REPLICAS", 1)
    with pytest.raises(ValueError, match="lists 2 replicas, the limit is 1"):
        parse_replicas([RUNNING, RUNNING])
    failing(Program((200, [{}])), ClusterFailed, "answers nonsense: replica 0 has no replica_id")


@for_each(
    ("fields", "message"),
    [
        ({"url": "host/path"}, "URL must look like"), ({"url": "ftp://h/"}, "URL must look like"),
        ({"url": "http://h:x/"}, "URL must look like"), ({"url": "http://h/#a"}, "URL must look like"),
        ({"url": "http://h/a b"}, "URL must look like"), ({"url": "https://u:p@h/"}, "belongs in the token file"),
        ({"timeout_seconds": 0.0}, "timeout_seconds"), ({"first_backoff": float("nan")}, "first_backoff"),
        ({"num_attempts": 0}, "num_attempts"),
    ],
)  # fmt: skip
def test_a_configuration_that_makes_no_sense_is_rejected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WebhookConfig(**{"url": "http://h/", **fields})


def test_tls_files_that_cannot_be_used_are_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the TLS files"):
        WebhookCluster(WebhookConfig(url="https://h/", ca_file=tmp_path / "none"))


# -- the time that a call may take -------------------------------------------------------------------------------------


def test_all_attempts_together_end_in_time_whatever_the_webhook_does() -> None:
    program = Program(*[None] * 8)

    async def scenario(cluster: WebhookCluster) -> None:
        for call, num_requests in ((cluster.list(), 2), (cluster.stop(["a"]), 4)):
            with pytest.raises(ClusterFailed, match="cannot be used, after 2 attempts"):
                await call
            assert len(program.requests) == num_requests

    run(program, scenario, timeout_seconds=0.1, list_seconds=0.15, change_seconds=0.15)
    assert webhook.LIST_SECONDS < 10 and webhook.CHANGE_SECONDS < 20  # the controller cuts calls then


def test_a_list_before_a_change_takes_of_the_time_of_the_change() -> None:
    async def scenario(cluster: WebhookCluster) -> None:
        with pytest.raises(ClusterFailed, match="after 1 attempt"):
            await cluster.start(SPEC)

    program = Program((200, []), None, None)
    run(program, scenario, timeout_seconds=30, change_seconds=0.2)
    assert [request.method for request in program.requests] == ["GET", "POST"]


def test_retry_after_holds_for_later_calls() -> None:
    program, times = Program((429, "", {"retry-after": "20"})), [100.0]

    async def scenario() -> None:
        async with serving(program) as url:
            cluster = WebhookCluster(WebhookConfig(url=url), random.Random(3), clock=lambda: times[0])
            for text in ("after 1 attempt: it answers status 429", r"asked to be called again in 20\.0 s"):
                with pytest.raises(ClusterFailed, match=text):
                    await cluster.list()
            assert len(program.requests) == 1
            times[0] += 20.0
            assert await cluster.list() == []
            await cluster.close()

    asyncio.run(scenario())


def test_a_change_that_failed_has_the_same_key_when_it_is_asked_for_again() -> None:
    program = Program((503, ""), (200, ""), (503, ""), (200, ""), (200, ""))

    async def scenario(cluster: WebhookCluster) -> None:
        for target in (1, 1, 2, 3, 3):
            try:
                await cluster.scale(SPEC, target)
            except ClusterFailed:
                continue

    run(program, scenario, num_attempts=1)
    first, again, other, third, fourth = [request.headers["idempotency-key"] for request in program.requests]
    assert first == again and len({first, other, third, fourth}) == 4

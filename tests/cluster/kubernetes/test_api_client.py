"""api_client.py: retries, token rotation, pages, and errors that say what is missing."""

import asyncio
import contextlib
import random
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from chairlift.cluster.kubernetes.api_client import MAX_ATTEMPTS, APIClient
from chairlift.cluster.kubernetes.api_resources import DEPLOYMENTS, LEADER_WORKER_SETS, PODS
from chairlift.core.cluster_errors import ClusterDenied, ClusterFailed
from chairlift.web.registry import json_client
from chairlift.web.registry.json_client import JSONClientConfig
from support_kubernetes_objects import status
from support_services_kubernetes import FakeKubernetes, fake_kubernetes


@pytest.fixture(autouse=True)
def patient_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_client, "CONNECT_SECONDS", 30.0)


@contextlib.asynccontextmanager
async def client_of(
    fake: FakeKubernetes, token_file: Path | None = None, sleeps: list[float] | None = None, **fields: Any
) -> AsyncIterator[APIClient]:
    async def sleep(seconds: float) -> None:
        (sleeps if sleeps is not None else []).append(seconds)

    config = JSONClientConfig(base_urls=(fake.url,), token_file=token_file)
    fields = {"timeout_seconds": 30.0, **fields}  # a busy machine must not add an attempt
    api = APIClient(config, "default", rng=random.Random(1), sleep=sleep, **fields)
    try:
        yield api
    finally:
        await api.close()


def run(scenario: Callable[[FakeKubernetes], Coroutine[Any, Any, None]], token: str | None = None) -> None:
    async def main() -> None:
        async with fake_kubernetes(token) as fake:
            for number in range(5):
                labels = {"app": "llm", "half": str(number % 2)}
                await fake.put_object("pods", {"metadata": {"name": f"pod-{number}", "labels": labels}})
            await scenario(fake)

    asyncio.run(main())


def names(found: list[Any]) -> list[str]:
    return [each["metadata"]["name"] for each in found]


def test_objects_are_read_and_patched() -> None:
    async def scenario(fake: FakeKubernetes) -> None:
        async with client_of(fake) as api:
            assert names(await api.list(PODS, "app=llm,half in (1)", from_cache=True)) == ["pod-1", "pod-3"]
            await api.patch(PODS, "pod-1", {"metadata": {"annotations": {"a": "b"}}})
            await api.patch(PODS, "pod-1", {"metadata": {"annotations": {"c": "d", "a": None}}})
            body = await api.get(PODS, "pod-1", from_cache=True)
            assert body["metadata"]["annotations"] == {"c": "d"}
            await api.replace(PODS, "pod-1", {**body, "spec": {"x": 1}})
            with pytest.raises(ClusterFailed, match="does not update pods pod-1 in namespace default: 409") as error:
                await api.replace(PODS, "pod-1", body)
            assert error.value.details["status"] == 409
            with pytest.raises(ClusterFailed, match="does not patch pods pod-2 in namespace default: 422"):
                await api.patch(PODS, "pod-2", {"metadata": {"uid": "of another pod"}})

    run(scenario)


def test_pages_are_joined_and_expired_pages_are_read_again() -> None:
    async def scenario(fake: FakeKubernetes) -> None:
        fake.page_size, fake.num_gone_pages = 2, 1
        async with client_of(fake) as api:
            assert names(await api.list(PODS, from_cache=True)) == [f"pod-{number}" for number in range(5)]
            assert [each.get("continue") for each in fake.requests] == [None, "2", None, "2", "4"]
            assert [each.get("resourceVersion") for each in fake.requests] == ["0", None, "0", None, None]
            fake.num_gone_pages = 1000
            with pytest.raises(ClusterFailed, match="more than 100 pages, the limit"):
                await api.list(PODS)

    run(scenario)


def test_a_token_that_was_renewed_meanwhile_is_read_at_once(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old", encoding="utf-8")

    async def scenario(fake: FakeKubernetes) -> None:
        def renew(request: web.Request) -> None:
            token.write_text("new", encoding="utf-8")  # after the client has read the old one

        fake.fault, sleeps = renew, []
        async with client_of(fake, token, sleeps) as api:
            assert len(await api.list(PODS)) == 5
            assert fake.tokens == ["Bearer old", "Bearer new"] and sleeps == []
            fake.token = "another"
            with pytest.raises(ClusterDenied, match=r"rejects the credentials .* check the token file") as error:
                await api.list(PODS)
            assert len(fake.tokens) == 4 and error.value.details["status"] == 401
            token.unlink()
            with pytest.raises(ClusterFailed, match="cannot read the token file"):
                await api.list(PODS)

    run(scenario, token="new")


@pytest.mark.parametrize(("allowed", "verb", "rule"), [
    ([], "get", '{apiGroups: ["apps"], resources: ["deployments/scale"], verbs: ["get"]}'),
    (["get"], "update", '{apiGroups: ["apps"], resources: ["deployments/scale"], verbs: ["update"]}'),
])  # fmt: skip
def test_a_missing_right_is_named_with_the_rule_to_add(allowed: list[str], verb: str, rule: str) -> None:
    async def scenario(fake: FakeKubernetes) -> None:
        fake.rules = [{"apiGroups": ["apps"], "resources": ["deployments/scale"], "verbs": allowed}]
        await fake.put_object("deployments", {"metadata": {"name": "llm"}, "spec": {"replicas": 1}})
        async with client_of(fake) as api:
            message = f"does not permit to {verb} deployments/scale llm in namespace default: .* needs this rule: "
            with pytest.raises(ClusterDenied, match=message + re.escape(rule)) as error:
                await api.replace(DEPLOYMENTS.scale, "llm", await api.get(DEPLOYMENTS.scale, "llm"))
            assert error.value.details["status"] == 403 and not error.value.retryable
        assert len(fake.calls) == 1 + len(allowed)

    run(scenario)


def test_an_object_and_an_api_that_do_not_exist() -> None:
    async def scenario(fake: FakeKubernetes) -> None:
        fake.missing_apis = {"leaderworkerset.x-k8s.io"}
        async with client_of(fake) as api:
            with pytest.raises(ClusterFailed, match="has no deployments llm in namespace default"):
                await api.get(DEPLOYMENTS, "llm")
            with pytest.raises(ClusterFailed, match=r"no API leaderworkerset.x-k8s.io/v1 with leaderworkersets; is it"):
                await api.get(LEADER_WORKER_SETS, "llm")

    run(scenario)


@pytest.mark.parametrize(("faults", "delays"), [
    # aiohttp itself sends a read again when a connection that it has used before is cut
    ([status(503, "down"), "cut", "cut"], [(0.1, 0.2), (0.2, 0.4)]),
    ([status(429, "later", **{"retry-after": "3"}), status(500, "x", **{"retry-after": "7"})], [(3, 3), (7, 7)]),
    ([status(429, "later", **{"retry-after": "3600"})], [(10, 10)]),
    ([status(429, "later", **{"retry-after": "soon"})], [(0.1, 0.2)]),
    ([status(503, "x", **{"retry-after": "1"}), "cut", "cut"], [(1, 1), (0.2, 0.4)]),
])  # fmt: skip
def test_what_may_pass_is_tried_again(faults: list[Any], delays: list[tuple[float, float]]) -> None:
    async def scenario(fake: FakeKubernetes) -> None:
        pending, sleeps = list(faults), []
        fake.fault = lambda _: pending.pop(0) if pending else None
        async with client_of(fake, sleeps=sleeps) as api:
            assert len(await api.list(PODS)) == 5
        assert len(sleeps) == len(delays)
        assert all(low <= seconds <= high for seconds, (low, high) in zip(sleeps, delays, strict=True)), sleeps

    run(scenario)


@pytest.mark.parametrize(("fault", "message", "has_status"), [
    ("cut", "list of pods: 4 attempts failed: http", False), ("hang", "no answer within 0.05 s", False),
    (503, "status 503", False), (429, "status 429", True),
])  # fmt: skip
def test_it_gives_up_after_some_attempts(fault: Any, message: str, has_status: bool) -> None:
    async def scenario(fake: FakeKubernetes) -> None:
        sleeps: list[float] = []
        fake.fault = lambda _: status(fault, "x") if isinstance(fault, int) else fault
        async with client_of(fake, sleeps=sleeps, timeout_seconds=0.05 if fault == "hang" else 30.0) as api:
            with pytest.raises(ClusterFailed, match=message) as error:
                await api.list(PODS)
        assert ("status" in error.value.details) is has_status and len(sleeps) == MAX_ATTEMPTS - 1

    run(scenario)


@pytest.mark.parametrize(("text", "message"), [("[]", "malformed: TypeError"), ("{}", "malformed: KeyError")])
def test_a_list_that_is_nonsense(text: str, message: str) -> None:
    async def scenario(fake: FakeKubernetes) -> None:
        fake.list_fault = web.Response(text=text)
        async with client_of(fake) as api:
            with pytest.raises(ClusterFailed, match=f"the list of pods is {message}"):
                await api.list(PODS)

    run(scenario)

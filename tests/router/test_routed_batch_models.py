"""routed_batch_models: batches of a router wait for replicas, and start one where requests are held."""

from collections.abc import Iterable

import httpx
import pytest

from chairlift.router.config import RouterConfig
from chairlift.router.endpoint import Endpoint, ReplicaKind
from chairlift.router.health.config import HealthConfig
from chairlift.router.routed_batch_models import MODEL_WAIT_SECONDS, routed_batch_models
from chairlift.router.router import Router
from chairlift.web.batch_api import batch_requests, batch_slots
from chairlift.web.batch_api.stored_batch import StoredBatch
from support_batch_api import BatchClient, batch_lines
from support_router import running_router
from support_router_app import served_replica
from support_server import MODEL, run


def new_batch() -> StoredBatch:
    return StoredBatch(
        id="batch_1", tenant="", endpoint="/v1/completions", input_file_id="file-1", completion_window="24h",
        metadata={}, created_at=1, expires_at=2,
    )  # fmt: skip


def router_of(models: Iterable[str], *, hold_timeout: float = 0.0) -> Router:
    """Return a router with a replica of each model."""
    router = Router(RouterConfig(hold_timeout=hold_timeout, health=HealthConfig(has_active_probes=False)))
    endpoints = [Endpoint(url=f"http://{model}", models=(model,), kind=ReplicaKind.OPENAI) for model in models]
    router.replicas.update(endpoints, router.clock.now())
    router.mark_started()
    return router


@pytest.mark.parametrize(
    ("models", "hold_timeout", "waited_seconds", "outcome"),
    [
        ((), 0, MODEL_WAIT_SECONDS, "waits"), (("b",), 0, 0, "waits"), (("b",), 0, MODEL_WAIT_SECONDS, "fails"),
        (("a", "b"), 0, 0, "begins"), ((), 60, 0, "begins unresolved"), (("b",), 60, 0, "waits"),
        (("b",), 60, MODEL_WAIT_SECONDS, "fails"),
    ],
)  # fmt: skip
def test_a_new_batch(models: tuple[str, ...], hold_timeout: float, waited_seconds: float, outcome: str) -> None:
    async def scenario() -> None:
        router, batch = router_of(models, hold_timeout=hold_timeout), new_batch()
        problem = routed_batch_models(router).accept(batch, {"a": 1}, waited_seconds)
        assert bool(problem) is (outcome == "waits") and bool(batch.errors) is (outcome == "fails")
        expected = {"begins": {"a": "a"}, "begins unresolved": {"a": ""}}
        assert batch.models == expected.get(outcome, {})
        await router.close()

    run(scenario())


def test_a_batch_that_has_begun_asks_for_its_replica_where_requests_are_held() -> None:
    async def scenario() -> None:
        for hold_timeout, problem in ((0, "served are no models, as no replica is ready"), (60, "")):
            router, batch = router_of((), hold_timeout=hold_timeout), new_batch()
            batch.models = {"a": "a"}
            found = routed_batch_models(router).problem(batch)
            assert problem in found and bool(found) is bool(problem)
            router.replicas.update([Endpoint(url="http://b", models=("b",))], router.clock.now())
            assert "the model 'a' is not served here; served are b" in routed_batch_models(router).problem(batch)
            await router.close()

    run(scenario())


@pytest.mark.parametrize("hold_timeout", [0.0, 60.0])
def test_a_batch_waits_while_no_replica_of_its_model_is_ready(hold_timeout: float) -> None:
    """The replicas of another model do not answer its requests, and requests are held only where none is ready."""

    async def scenario() -> None:
        router, batch = router_of(("a", "b"), hold_timeout=hold_timeout), new_batch()
        models = routed_batch_models(router)
        assert models.accept(batch, {"a": 1}, 0.0) == "" == models.problem(batch)
        router.drain_replica("http://a")
        assert models.problem(batch).startswith("no replica of the model 'a' is ready; the batch goes on when")
        assert models.accept(new_batch(), {"a": 1}, 0.0) == "", "the name is right"
        router.drain_replica("http://b")
        assert bool(models.problem(batch)) is not bool(hold_timeout)
        await router.close()

    run(scenario())


def test_a_batch_starts_the_first_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """The router was started without a replica, and its requests wait for one: the autoscaler starts it for them."""
    monkeypatch.setattr(batch_requests, "POLL_SECONDS", 0.005)
    monkeypatch.setattr(batch_slots, "POLL_SECONDS", 0.005)

    async def scenario() -> None:
        async with (
            served_replica() as url, running_router([], hold_timeout=60.0) as running,
            httpx.AsyncClient(base_url=running.url, timeout=10) as http,
        ):  # fmt: skip
            client, router = BatchClient(http), running.router
            batch_id = await client.create(batch_lines(3))
            batch = await client.wait(batch_id, "in_progress")
            assert batch["errors"] is None
            while router.num_requests_without_replica == 0:
                batch = await client.batch(batch_id)
            assert batch["status"] == "in_progress" and batch["request_counts"]["completed"] == 0
            endpoint = Endpoint(url=url, kind=ReplicaKind.CHAIRLIFT, models=(MODEL,))
            router.replicas.update([endpoint], router.clock.now())
            batch = await client.wait(batch_id)
            assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}

    run(scenario())

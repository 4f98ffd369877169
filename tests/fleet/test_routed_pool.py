"""RoutedPool: drains of the fleet reach the router, and its measurements reach the autoscaler."""

import asyncio
import threading
import time
from itertools import count
from typing import Any

import httpx
import pytest

from chairlift.autoscaler.pool_sample import PoolSample
from chairlift.core.clock import FakeClock
from chairlift.engine.step_plan import StepPlan
from chairlift.fleet.cluster_discovery_source import ClusterSource
from chairlift.fleet.routed_pool import RoutedPool
from chairlift.router.config import RouterConfig
from chairlift.router.endpoint import ReplicaKind
from chairlift.router.health.config import HealthConfig
from chairlift.router.health.health_state import HealthState
from chairlift.router.router import Router
from chairlift.router.telemetry import LatencyWindow
from support_autoscaler import FakeSignals
from support_router import HELLO, running_router
from support_router_app import complete, routed, served_replica
from support_server import MODEL, run

URL = "http://127.0.0.1:9"


async def pool_of(clock: FakeClock, **options: Any) -> tuple[Router, RoutedPool, ClusterSource]:
    router = Router(RouterConfig(health=HealthConfig(has_active_probes=False), **options), clock)
    source = ClusterSource()
    return router, RoutedPool(router, source), source


def test_what_serves_is_the_list_of_the_source_and_a_drain_reaches_the_router() -> None:
    async def scenario() -> None:
        router, pool, source = await pool_of(FakeClock())
        pool.set_serving([URL])
        router.replicas.update(await anext(source.watch()), 0.0)
        pool.drain(URL)
        assert router.replicas.statuses(0.0)[0].state is HealthState.DRAINED
        pool.undrain(URL)
        assert router.replicas.statuses(0.0)[0].state is not HealthState.DRAINED
        assert pool.num_open_requests(URL) == 0 == pool.num_open_requests("http://unknown")
        pool.drain("http://unknown")
        pool.undrain("http://unknown")
        await router.close()

    run(scenario())


def test_latencies_are_the_quantile_of_the_last_minute_and_zero_without_requests() -> None:
    async def scenario() -> None:
        clock = FakeClock(100.0)
        router, pool, _ = await pool_of(clock)
        empty = await pool.measure(PoolSample(at_seconds=100.0))
        assert (empty.ttft_seconds, empty.itl_seconds, empty.requests_per_second) == (0.0, 0.0, 0.0)
        router.telemetry.num_arrivals = 100
        for number in range(1, 101):
            router.telemetry.first_tokens.add(number / 100, 101.0)
            router.telemetry.inter_tokens.add(number / 1000, 101.0)
        clock.advance(4)
        sample = await pool.measure(PoolSample(at_seconds=104.0))
        assert (sample.ttft_seconds, sample.itl_seconds) == (0.95, 0.095)
        assert sample.requests_per_second == pytest.approx(25)
        clock.advance(4)
        assert (await pool.measure(sample)).requests_per_second == 0.0, "no new one"
        router.telemetry.num_arrivals += 7
        clock.advance(0.01)
        assert (await pool.measure(sample)).requests_per_second == 0.0, "too soon for another rate"
        clock.advance(0.99)
        assert (await pool.measure(sample)).requests_per_second == pytest.approx(7)
        await router.close()

    run(scenario())


def test_requests_that_wait_for_a_replica_are_counted_with_their_tokens() -> None:
    async def scenario() -> None:
        async with routed(hold_timeout=5) as fleet:
            router = fleet.running.router
            pool = RoutedPool(router, ClusterSource())
            waiting = asyncio.create_task(fleet.post(HELLO))
            while router.hold.num_requests == 0:
                await asyncio.sleep(0.001)
            sample = await pool.measure(PoolSample(at_seconds=0.0))
            assert sample.held_requests == 1 and (sample.held_tokens or 0) > 0
            router.abort_all()
            await waiting
        async with routed(complete, hold_timeout=5) as fleet:
            assert (await fleet.post(HELLO)).status_code == 200
            sample = await RoutedPool(fleet.running.router, ClusterSource()).measure(PoolSample(at_seconds=0.0))
            assert sample.held_requests == 0

    run(scenario())


def test_numbers_of_queries_take_the_place_of_what_the_router_measured() -> None:
    async def scenario() -> PoolSample:
        router, _, source = await pool_of(FakeClock())
        signals = FakeSignals({"ttft_seconds": 0.5, "queue": 16.0})
        return await RoutedPool(router, source, signals=signals).measure(PoolSample(at_seconds=1.0))

    sample = run(scenario())
    assert (sample.ttft_seconds, sample.itl_seconds, sample.external) == (0.5, 0.0, {"queue": 16.0})


def test_a_whole_response_has_arrived_and_says_nothing_of_its_first_token() -> None:
    async def scenario() -> None:
        async with routed(complete) as fleet:
            assert (await fleet.post(HELLO)).status_code == 200
            telemetry = fleet.running.router.telemetry
            assert telemetry.num_arrivals == 1
            assert telemetry.first_tokens.quantile(1.0, time.monotonic()) is None

    run(scenario())


def test_the_first_token_of_a_response_that_is_not_streamed_is_measured_when_the_replica_has_it() -> None:
    may_go_on, steps = threading.Event(), count(-20)

    def hook(plan: StepPlan, stage: str) -> None:
        if stage == "launch" and next(steps) == 5:
            may_go_on.wait(10)

    async def scenario() -> None:
        async with (
            served_replica(hook=hook) as url,
            running_router([url], kind=ReplicaKind.CHAIRLIFT, models=(MODEL,)) as running,
            httpx.AsyncClient() as http,
        ):
            body = {"model": MODEL, "prompt": "Hello", "max_tokens": 20, "ignore_eos": True}
            await http.post(f"{running.url}/v1/completions", json=body)  # its header names the replica's weights
            telemetry = running.router.telemetry
            telemetry.first_tokens = LatencyWindow()
            response = asyncio.create_task(http.post(f"{running.url}/v1/completions", json=body, timeout=20))
            while telemetry.first_tokens.quantile(1.0, running.router.clock.now()) is None:
                assert not response.done(), "it was measured at the end"
                await asyncio.sleep(0.002)
            assert not response.done()
            may_go_on.set()
            assert (await response).json()["usage"]["completion_tokens"] == 20

    try:
        run(scenario())
    finally:
        may_go_on.set()

"""ReplicaProber: one task for each replica, and a replica set that follows what they find."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import aiohttp
import pytest

from chairlift.core.clock import SystemClock
from chairlift.router.endpoint import Endpoint, ReplicaKind
from chairlift.router.health.config import HealthConfig
from chairlift.router.health.consecutive_probes import ProbeConfig
from chairlift.router.health.health_state import HealthState
from chairlift.router.health.prober import ReplicaProber
from chairlift.router.replica_set import ReplicaSet
from support_replica_set import TransitionLog
from support_scripted_replica import TIMEOUT_SECONDS, ScriptedReplica, response, stall

QUICK = HealthConfig(probes=ProbeConfig(interval_seconds=0.01, start_interval_seconds=0.01))
ANSWERS = {
    "/readyz": response(200, {"state": "ready"}),
    "/load": response(200, {"state": "ready", "instance_id": "p1", "running_requests": 3, "waiting_tokens": 0}),
    "/v1/models": response(200, {"data": [{"id": "m"}]}),
}

Scenario = Callable[[ReplicaSet, ReplicaProber, "Waiter"], Awaitable[None]]


class Waiter(TransitionLog):
    """Waits for states of replicas."""

    def __init__(self, replica_set: ReplicaSet) -> None:
        super().__init__()
        self._set = replica_set
        self._changed = asyncio.Event()
        replica_set.listeners.append(self)

    def on_transition(self, transition: object) -> None:
        self._changed.set()

    async def wait(self, *states: HealthState) -> None:
        """Wait until the replicas have these states, in order of their ids."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while [status.state for status in self._set.statuses(0.0)] != list(states):
                self._changed.clear()
                await self._changed.wait()


def run(scenario: Scenario, *, timeout: float = TIMEOUT_SECONDS, headers: Mapping[str, str] | None = None) -> None:
    """Run a scenario beside a prober."""

    async def main() -> None:
        replica_set = ReplicaSet(QUICK)
        async with aiohttp.ClientSession() as session:
            prober = ReplicaProber(
                replica_set, session, SystemClock(), timeout_seconds=timeout, headers_of=lambda endpoint: headers or {}
            )
            task = asyncio.create_task(prober.run())
            try:
                await scenario(replica_set, prober, Waiter(replica_set))
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        assert [each for each in asyncio.all_tasks() if each.get_name().startswith("probe ")] == []

    asyncio.run(asyncio.wait_for(main(), 2 * TIMEOUT_SECONDS))


def test_a_replica_is_found_lost_and_found_again() -> None:
    async def scenario(replica_set: ReplicaSet, prober: ReplicaProber, waiter: Waiter) -> None:
        async with ScriptedReplica(ANSWERS) as server:
            replica_set.update([Endpoint(url=server.url)], 0.0)
            await waiter.wait(HealthState.HEALTHY)
            (status,) = replica_set.statuses(0.0)
            assert (status.kind, status.models, status.incarnation) == (ReplicaKind.CHAIRLIFT, ("m",), "p1")
            await server.stop()
            await waiter.wait(HealthState.UNHEALTHY)
            await server.start()
            await waiter.wait(HealthState.HEALTHY)
            assert 0 < prober.num_failed_probes < prober.num_probes
            assert "x-key: 1" in server.headers[0].lower()

    run(scenario, headers={"x-key": "1"})


def test_replicas_come_and_go() -> None:
    async def scenario(replica_set: ReplicaSet, prober: ReplicaProber, waiter: Waiter) -> None:
        async with ScriptedReplica(ANSWERS) as first, ScriptedReplica(ANSWERS) as second:
            one, two = Endpoint(url=first.url), Endpoint(url=second.url)
            replica_set.update([one], 0.0)
            await waiter.wait(HealthState.HEALTHY)
            replica_set.update([one, two], 0.0)
            await waiter.wait(HealthState.HEALTHY, HealthState.HEALTHY)
            replica_set.update([two], 0.0)
            await second.wait_for_requests(len(second.paths) + 4)
            count = len(first.paths)
            await second.wait_for_requests(len(second.paths) + 8)
            assert len(first.paths) == count, "a removed replica is probed no more"

    run(scenario)


def test_a_replica_that_leaves_and_returns_at_once_is_asked_for_its_models_again() -> None:
    async def scenario(replica_set: ReplicaSet, prober: ReplicaProber, waiter: Waiter) -> None:
        async with ScriptedReplica(ANSWERS) as server:
            for _ in range(2):
                replica_set.update([], 0.0)
                replica_set.update([Endpoint(url=server.url)], 0.0)
                await waiter.wait(HealthState.HEALTHY)
                assert replica_set.models == ("m",)

    run(scenario)


def test_a_replica_that_stalls_does_not_delay_the_others() -> None:
    async def scenario(replica_set: ReplicaSet, prober: ReplicaProber, waiter: Waiter) -> None:
        async with ScriptedReplica({"/readyz": stall}) as stalled, ScriptedReplica(ANSWERS) as server:
            replica_set.update([Endpoint(url=stalled.url), Endpoint(url=server.url)], 0.0)
            await server.wait_for_requests(30)
            assert len(stalled.paths) == 1 and prober.num_failed_probes == 0

    run(scenario)


def test_a_drain_is_seen_by_the_next_probe() -> None:
    async def scenario(replica_set: ReplicaSet, prober: ReplicaProber, waiter: Waiter) -> None:
        async with ScriptedReplica(ANSWERS) as server:
            replica_set.update([Endpoint(url=server.url)], 0.0)
            await waiter.wait(HealthState.HEALTHY)
            server.answers["/readyz"] = response(503, {"state": "draining"})
            await waiter.wait(HealthState.NOT_READY)

    run(scenario)


def test_a_bug_in_a_listener_of_probes_does_not_end_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(replica_set: ReplicaSet, prober: ReplicaProber, waiter: Waiter) -> None:
        def broken(*arguments: object) -> None:
            raise RuntimeError("broken")

        with monkeypatch.context() as patch:
            patch.setattr(replica_set, "apply_probe", broken)
            async with ScriptedReplica(ANSWERS) as server:
                replica_set.update([Endpoint(url=server.url)], 0.0)
                await server.wait_for_requests(20)
                patch.undo()
                await waiter.wait(HealthState.HEALTHY)

    run(scenario)
    assert caplog.text.count("RuntimeError: broken") == 1, "only the first of a series is logged"

"""Controller: senses, decides and acts; failures, hanging calls, dry run, and a wake-up."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from chairlift.autoscaler.config import AutoscalerConfig
from chairlift.autoscaler.controller import MIN_WAKE_SECONDS, Controller, within
from chairlift.autoscaler.decision import Decision
from chairlift.autoscaler.pool_sample import PoolSample
from chairlift.core.clock import FakeClock
from chairlift.core.cluster_errors import ClusterFailed
from support_autoscaler import pool, replicas_of

CONFIG = AutoscalerConfig(min_replicas=2, max_replicas=4, sample_timeout_seconds=0.02, apply_timeout_seconds=0.02)


class FakePool:
    """A pool that does what it is asked for; a call of `faults` comes before each sample or change."""

    def __init__(self, clock: FakeClock, num_replicas: int = 1) -> None:
        self.clock = clock
        self.num_replicas = num_replicas
        self.applied: list[int] = []
        self.faults: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {}

    async def sample(self) -> PoolSample:
        self.clock.advance(2.0)
        if "sample" in self.faults:
            await self.faults["sample"]()
        return pool(self.clock.now(), *replicas_of(self.num_replicas))

    async def apply(self, decision: Decision) -> None:
        if "apply" in self.faults:
            await self.faults["apply"]()
        self.applied.append(decision.target)
        self.num_replicas = decision.target


async def fail() -> None:
    raise ClusterFailed("the cluster is away")


async def fail_oddly() -> None:
    raise ZeroDivisionError


async def cancel_itself() -> None:
    raise asyncio.CancelledError


async def hang() -> None:
    await asyncio.Event().wait()


async def hang_stubbornly() -> None:
    """Ignore the first cancellation, so that waiting for the end of the task would wait for ever."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        await asyncio.sleep(0.05)
        raise ClusterFailed("too late") from None


def new_controller(config: AutoscalerConfig = CONFIG, **values: Any) -> tuple[Controller, FakePool]:
    clock = FakeClock()
    fake = FakePool(clock, **values)
    return Controller(fake, config, clock), fake


def test_a_step_measures_decides_and_acts() -> None:
    decisions: list[Decision] = []
    controller, fake = new_controller()
    controller = Controller(fake, CONFIG, fake.clock, on_decision=decisions.append)

    async def run() -> None:
        for _ in range(3):
            await controller.step()

    asyncio.run(run())
    assert fake.applied == [2]
    assert [each.target for each in decisions] == [2, 2, 2]
    assert len(controller.history.changes) == 1
    assert controller.status.values().decisions == {"up": 1, "down": 0, "none": 2}


@pytest.mark.parametrize("action", ["sample", "apply"])
@pytest.mark.parametrize("fault", [fail, fail_oddly, cancel_itself, hang, hang_stubbornly])
def test_no_failure_ends_the_loop_and_the_pool_follows_after_it(
    action: str, fault: Callable[[], Coroutine[Any, Any, None]], caplog: pytest.LogCaptureFixture
) -> None:
    controller, fake = new_controller()

    async def run() -> None:
        fake.faults[action] = fault
        for _ in range(2):
            await controller.step()
        assert fake.applied == []
        may_have_happened = action == "apply" and fault in (hang, hang_stubbornly)
        assert bool(controller.history.changes) == may_have_happened, "limits of speed count what may come yet"
        fake.faults.clear()
        await controller.step()
        assert fake.applied == [2]
        await asyncio.sleep(0)

    asyncio.run(run())
    assert controller.status.values().failures[action] == 2
    assert f"autoscaler: {action} failed 2 times in a row" in caplog.text


def test_a_new_configuration_takes_effect_with_the_next_step() -> None:
    controller, fake = new_controller()

    async def run() -> None:
        await controller.step()
        controller.update_config(replace(CONFIG, min_replicas=3))
        await controller.step()

    asyncio.run(run())
    assert fake.applied == [2, 3]
    assert controller.history.config.min_replicas == 3


def test_a_callback_that_fails_does_not_end_the_loop() -> None:
    _, fake = new_controller()

    def refuse(_: Decision) -> None:
        raise ZeroDivisionError

    controller = Controller(fake, CONFIG, fake.clock, on_decision=refuse)
    asyncio.run(controller.step())
    assert controller.status.values().failures["decide"] == 1


def test_a_dry_run_decides_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    controller, fake = new_controller(replace(CONFIG, is_dry_run=True))

    async def run() -> None:
        for _ in range(3):
            await controller.step()

    asyncio.run(run())
    assert fake.applied == []
    assert not controller.history.changes
    assert controller.status.values().target == 2
    assert "1 -> 2 replicas" in caplog.text
    assert "dry run" in caplog.text


def test_the_loop_runs_until_it_is_cancelled_and_a_wakeup_ends_its_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, fake = new_controller(replace(CONFIG, interval_seconds=29.0))
    monkeypatch.setattr("chairlift.autoscaler.controller.MIN_WAKE_SECONDS", 0.0)

    async def run() -> None:
        task = asyncio.create_task(controller.run())
        for count in (1, 2, 3):
            while sum(controller.status.values().decisions.values()) < count:
                await asyncio.sleep(0)
            await asyncio.sleep(0.001)
            controller.wake()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert task.cancelled()

    asyncio.run(run())
    assert fake.applied == [2]


def test_delays_grow_with_failures_in_a_row_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, fake = new_controller()
    fake.faults["sample"] = fail
    delays, woken_after = list[float](), list[float]()

    async def note(least: float, most: float) -> None:
        delays.append(most + 2.0)  # each sample takes two seconds of the clock
        woken_after.append(least + 2.0)
        if len(delays) == 5:
            fake.faults.clear()
        if len(delays) == 6:
            raise asyncio.CancelledError

    monkeypatch.setattr(controller, "_sleep", note)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(controller.run())
    assert delays == [4.0, 8.0, 12.0, 12.0, 12.0, 2.0]
    assert woken_after == pytest.approx([4.0, 8.0, 12.0, 12.0, 12.0, MIN_WAKE_SECONDS]), (
        "a wake-up does not shorten these delays"
    )


def test_a_cancelled_caller_cancels_the_call() -> None:
    was_cancelled = []

    async def call() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            was_cancelled.append(True)

    async def run() -> None:
        task = asyncio.create_task(within(30.0, call()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)

    asyncio.run(run())
    assert was_cancelled == [True]

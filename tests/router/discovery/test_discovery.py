"""discovery.py: several scripted sources at once: failures, backoff, reloads, empty lists, one report a change."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from chairlift.core.errors import ConfigError
from chairlift.router.discovery import discovery as module
from chairlift.router.discovery.base import Snapshot, SourceState
from chairlift.router.discovery.discovery import Discovery
from support_discovery import ScriptedSource, eventually, urls


@asynccontextmanager
async def following(*sources: ScriptedSource, empty_grace_seconds: float = 60.0) -> AsyncIterator[Discovery]:
    reports: list[Snapshot] = []
    discovery = Discovery(
        sources, reports.append, rng=random.Random(1), empty_grace_seconds=empty_grace_seconds
    )  # fmt: skip
    discovery.reports = reports  # type: ignore[attr-defined]
    task = asyncio.create_task(discovery.run())
    try:
        yield discovery
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


def reports(discovery: Discovery) -> list[list[str]]:
    return [urls(each) for each in discovery.reports]  # type: ignore[attr-defined]


def test_lists_are_merged_and_each_change_is_reported_once() -> None:
    async def scenario() -> None:
        first, second = ScriptedSource("first"), ScriptedSource("second")
        async with following(first, second) as discovery:
            first.put("a")
            await eventually(lambda: len(discovery.endpoints) == 1)
            second.put("a", "b")
            await discovery.wait_complete()
            second.put("b", "a")
            second.put("a")
            await eventually(lambda: discovery.statuses()[1].num_updates == 3)
            assert reports(discovery) == [["http://a"], ["http://a", "http://b"], ["http://a"]]

    asyncio.run(scenario())


def test_a_source_that_is_down_keeps_its_list_and_is_watched_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        source, other = ScriptedSource("etcd://h/p"), ScriptedSource()
        async with following(source, other) as discovery:
            source.put("a")
            other.put("b")
            await discovery.wait_complete()
            source.fail("connection refused")
            await eventually(lambda: discovery.statuses()[0].state is SourceState.DOWN)
            assert urls(discovery.endpoints) == ["http://a", "http://b"]
            source.fail("connection refused")
            await eventually(lambda: discovery.statuses()[0].num_failures == 2)
            source.put("c")
            await eventually(lambda: urls(discovery.endpoints) == ["http://b", "http://c"])
            assert discovery.statuses()[0].state is SourceState.UP
            assert (source.num_watches, other.num_watches) == (3, 1)

    asyncio.run(scenario())
    line = "the discovery source etcd://h/p is down, its last list of 1 replicas stays: connection refused"
    assert caplog.text.count(line) == 1
    assert caplog.text.count("the discovery source etcd://h/p answers again") == 1


def test_a_source_that_was_never_up_completes_the_start_and_is_reported() -> None:
    async def scenario() -> None:
        source = ScriptedSource()
        async with following(source) as discovery:
            source.fail()
            async with asyncio.timeout(5):
                await discovery.wait_complete()
            assert discovery.endpoints == () and discovery.statuses()[0].last_error == "it is down"

    asyncio.run(scenario())


def test_an_internal_error_and_an_ended_watch_are_failures_of_one_source(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        source, other = ScriptedSource("broken"), ScriptedSource()
        async with following(source, other) as discovery:
            source.put(ZeroDivisionError("a bug"))
            await eventually(lambda: discovery.statuses()[0].last_error == "internal error: ZeroDivisionError")
            source.end()
            await eventually(lambda: discovery.statuses()[0].last_error == "its watch ended")
            other.put("b")
            await eventually(lambda: urls(discovery.endpoints) == ["http://b"])

    asyncio.run(scenario())
    assert "the discovery source broken failed with an internal error" in caplog.text


def test_a_configuration_that_became_invalid_is_a_failure_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        source = ScriptedSource()
        async with following(source) as discovery:
            source.put(ConfigError("cannot read the TLS files ca.pem"))
            await eventually(lambda: discovery.statuses()[0].last_error == "cannot read the TLS files ca.pem")

    asyncio.run(scenario())
    assert "Traceback" not in caplog.text


def test_delays_grow_to_1_s_while_a_source_fails_and_begin_again_after_a_long_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delays: list[float] = []

    class RecordingBackoff(module.Backoff):
        def next_delay(self) -> float:
            delays.append(super().next_delay())
            return 0.001

    monkeypatch.setattr(module, "Backoff", RecordingBackoff)

    async def scenario() -> None:
        source = ScriptedSource()
        async with following(source) as discovery:
            for count in range(1, 6):
                source.fail()
                await eventually(lambda count=count: discovery.statuses()[0].num_failures == count)  # type: ignore[misc]
            monkeypatch.setattr(module, "STABLE_SECONDS", 0.0)
            source.fail()
            await eventually(lambda: discovery.statuses()[0].num_failures == 6)

    asyncio.run(scenario())
    assert delays[0] <= 0.2 and delays[4] >= 0.5 and delays[5] <= 0.2
    assert max(delays) <= 1.0  # a replica that registers after an outage is routed to within 2 s


def test_an_empty_list_is_believed_after_the_grace_time_without_another_list(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        source = ScriptedSource("dns://x:1")
        async with following(source, empty_grace_seconds=0.1) as discovery:
            source.put("a")
            await eventually(lambda: len(discovery.endpoints) == 1)
            source.put()
            await eventually(lambda: discovery.statuses()[0].state is SourceState.EMPTY)
            assert urls(discovery.endpoints) == ["http://a"]
            await eventually(lambda: discovery.endpoints == ())
            assert discovery.statuses()[0].state is SourceState.UP

    asyncio.run(scenario())
    assert caplog.text.count("the discovery source dns://x:1 has no replicas any more") == 1


def test_a_reload_watches_every_source_again_also_one_that_waits_after_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class LongBackoff(module.Backoff):
        def next_delay(self) -> float:
            return 1000.0

    monkeypatch.setattr(module, "Backoff", LongBackoff)

    async def scenario() -> None:
        source, failing = ScriptedSource(), ScriptedSource()
        async with following(source, failing) as discovery:
            source.put("a")
            failing.fail()
            await discovery.wait_complete()
            discovery.reload()
            await eventually(lambda: (source.num_watches, failing.num_watches) == (2, 2))
            assert urls(discovery.endpoints) == ["http://a"]
            source.put("b")
            failing.put("c")
            await eventually(lambda: urls(discovery.endpoints) == ["http://b", "http://c"])
            assert discovery.statuses()[0].num_failures == 0

    asyncio.run(scenario())

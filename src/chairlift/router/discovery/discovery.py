"""Discovery: follows several sources at once and reports every change of the merged list."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Sequence

from chairlift.core.clock import Clock, SystemClock
from chairlift.core.errors import ChairliftError
from chairlift.router.discovery.base import DiscoverySource, Snapshot, SourceState, SourceStatus
from chairlift.router.discovery.endpoint_merger import EMPTY_GRACE_SECONDS, EndpointMerger
from chairlift.web.registry.backoff import Backoff

log = logging.getLogger(__name__)

MAX_DELAY_SECONDS = 1.0
"""Longest delay before a source that failed is read again: a replica that registers as soon as its registry is back
is routed to within 2 s."""

STABLE_SECONDS = 10.0
"""Seconds that a watch must last for the delays after its end to begin again with the shortest."""


class Discovery:
    """The replicas of all sources; a URL that several name is taken from the first of them."""

    def __init__(
        self, sources: Sequence[DiscoverySource], on_change: Callable[[Snapshot], None], *, rng: random.Random,
        empty_grace_seconds: float = EMPTY_GRACE_SECONDS, clock: Clock | None = None,
    ) -> None:  # fmt: skip
        """Prepare to follow `sources`; `on_change` gets the whole merged list after each change of it."""
        self._sources, self._on_change, self._rng = tuple(sources), on_change, rng
        self._clock = SystemClock() if clock is None else clock
        names = [source.name for source in self._sources]
        self._merger = EndpointMerger(names, self._clock.now(), empty_grace_seconds=empty_grace_seconds)
        self._reloads = [asyncio.Event() for _ in self._sources]
        self._tick_changed = asyncio.Event()
        self._complete = asyncio.Event()
        self.endpoints: Snapshot = ()

    async def run(self) -> None:
        """Follow the sources until cancelled."""
        async with asyncio.TaskGroup() as group:
            for index, source in enumerate(self._sources):
                group.create_task(self._follow(index, source))
            group.create_task(self._believe_empty_lists())

    async def wait_complete(self) -> None:
        """Wait until every source has answered or failed once."""
        await self._complete.wait()

    def reload(self) -> None:
        """Read every source again at once, as SIGHUP asks for; the lists stay until then."""
        for event in self._reloads:
            event.set()

    def statuses(self) -> tuple[SourceStatus, ...]:
        """Return the status of each source, in order of precedence."""
        return self._merger.statuses()

    # -- one source ------------------------------------------------------------------------------------------------

    async def _follow(self, index: int, source: DiscoverySource) -> None:
        backoff, reload = Backoff(self._rng, max_seconds=MAX_DELAY_SECONDS), self._reloads[index]
        while True:
            reload.clear()
            started_at = self._clock.now()
            reason = await self._watch_until_reload(index, source, reload)
            if reason is None:
                continue
            self._fail(index, reason)
            if self._clock.now() - started_at >= STABLE_SECONDS:
                backoff.reset()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff.next_delay()):
                    await reload.wait()

    async def _watch_until_reload(self, index: int, source: DiscoverySource, reload: asyncio.Event) -> str | None:
        """Take lists of a source until its watch ends, and return the reason; None after a reload."""
        watching = asyncio.create_task(self._watch(index, source))
        reloading = asyncio.create_task(reload.wait())
        try:
            await asyncio.wait([watching, reloading], return_when=asyncio.FIRST_COMPLETED)
            return watching.result() if watching.done() else None
        finally:
            for task in (watching, reloading):
                task.cancel()
            await asyncio.wait([watching, reloading])

    async def _watch(self, index: int, source: DiscoverySource) -> str:
        """Take lists of a source until its watch ends; return the reason."""
        try:
            async with contextlib.aclosing(source.watch()) as snapshots:
                async for snapshot in snapshots:
                    self._update(index, snapshot)
        except ChairliftError as error:  # a ConfigError, too: a file of certificates may vanish later
            return str(error)
        except Exception as error:
            log.exception("the discovery source %s failed with an internal error", source.name)
            return f"internal error: {type(error).__name__}"
        return "its watch ended"

    def _update(self, index: int, snapshot: Snapshot) -> None:
        before = self._merger.statuses()[index].state
        state = self._merger.update(index, snapshot, self._clock.now())
        name = self._sources[index].name
        if not snapshot and state is SourceState.EMPTY is not before:
            log.warning("the discovery source %s has no replicas any more; its last list stays for a while", name)
        elif before is SourceState.DOWN:
            log.warning("the discovery source %s answers again", name)
        self._tick_changed.set()
        self._report()

    def _fail(self, index: int, reason: str) -> None:
        if self._merger.fail(index, reason, self._clock.now()):
            status = self._merger.statuses()[index]
            log.error(
                "the discovery source %s is down, its last list of %d replicas stays: %s",
                status.name, status.num_endpoints, reason,
            )  # fmt: skip
        self._tick_changed.set()
        self._report()

    # -- all sources -----------------------------------------------------------------------------------------------

    async def _believe_empty_lists(self) -> None:
        while True:
            self._tick_changed.clear()
            tick = self._merger.next_tick
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if tick is None else max(0.0, tick - self._clock.now())):
                    await self._tick_changed.wait()
            self._merger.tick(self._clock.now())
            self._report()

    def _report(self) -> None:
        """Hand the merged list on if it has changed."""
        if (merged := self._merger.merged()) != self.endpoints:
            self.endpoints = merged
            self._on_change(merged)
        if self._merger.is_complete:
            self._complete.set()

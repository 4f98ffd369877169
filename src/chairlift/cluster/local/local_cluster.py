"""LocalCluster: replicas are processes of this machine, which outlive the process that started them."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self, TypeVar

from chairlift.cluster.base import ReplicaSpec
from chairlift.cluster.cluster_replica import ClusterReplica
from chairlift.cluster.local.local_config import LocalConfig
from chairlift.cluster.local.local_replicas import LocalReplicas
from chairlift.cluster.local.process_record import ProcessRecord, RecordState
from chairlift.cluster.local.readiness_probe import is_serving
from chairlift.cluster.local.restart_policy import describe_restart, elapsed
from chairlift.core.cluster_errors import ClusterFailed

T = TypeVar("T")

MAX_PROBES = 64
"""Readiness checks of one round at most; the others have their turn in the next one."""

FAILED_SECONDS = 60.0
"""Seconds that a failed replica stays in the list after another one was started for it."""

LOG_POLL_SECONDS = 0.2
NUM_LAST_LINES = 5


class LocalCluster:
    """A Cluster of processes. One controller uses its folder at a time; the first call waits for it at most 2 s.

    Ends of replicas are noticed, stops continue and restarts happen inside of the calls: one of them, say `list`,
    should be made every second or two. The work is done in one thread, so the event loop is not blocked.
    """

    def __init__(self, config: LocalConfig, wall_time: Callable[[], float] = time.time) -> None:
        """Create it; files and processes are touched by the first call. `wall_time` is for tests.

        The first call lets replicas start anew that failed or were in a crash loop under an earlier controller.
        """
        self._config, self._wall_time = config, wall_time
        self._replicas = LocalReplicas(config, wall_time)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="chairlift-cluster")
        self._probes: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def list(self) -> Sequence[ClusterReplica]:
        """Return all replicas, also those that start, stop, are in a crash loop or failed in the last minute."""
        replicas, unserved = await self._run(self._list)
        if unserved and (self._probes is None or self._probes.done()):
            self._probes = asyncio.create_task(self._probe(unserved))
        return replicas

    async def start(self, spec: ReplicaSpec, count: int = 1) -> None:
        """Start `count` more replicas. A crash loop of this spec ends: `scale` restarts its replicas again."""
        await self._run(lambda: self._replicas.start(spec, count))

    async def stop(self, replica_ids: Sequence[str]) -> None:
        """Send SIGTERM to replicas, and SIGKILL after `stop_timeout`; a failed one is not restarted."""
        await self._run(lambda: self._replicas.stop(replica_ids))

    async def scale(self, spec: ReplicaSpec, target: int, *, remove: Sequence[str] = ()) -> None:
        """Have `target` replicas; a failed one is restarted after its delay, and never in a crash loop.

        Raises ClusterFailed when a replica has no place: no port or no GPU is free.
        """
        await self._run(lambda: self._replicas.scale(spec, target, remove))

    async def release_failed(self) -> None:
        """End all crash loops and delays: the next `scale` starts replicas for the failed ones."""
        await self._run(self._replicas.release_failed)

    async def log_lines(self, poll_seconds: float = LOG_POLL_SECONDS) -> AsyncIterator[tuple[str, str]]:
        """Yield each new line of the output of all replicas as (replica_id, line), until the cluster is closed.

        Replicas that run already are followed from the end of their logs. One reader at a time.
        """
        while not self._closed.is_set():
            try:
                lines = await self._run(self._read_logs)
            except ClusterFailed:
                if self._closed.is_set():
                    return
                raise
            for each in lines:
                yield each
            await asyncio.sleep(poll_seconds)

    async def close(self) -> None:
        """Give the folder up; replicas run on. May be called more than once."""
        if self._closed.is_set():
            return
        self._closed.set()
        if self._probes is not None:
            self._probes.cancel()
            await asyncio.gather(self._probes, return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(self._thread, self._replicas.close)
        self._thread.shutdown(wait=False)

    # -- in the thread ---------------------------------------------------------------------------------------------

    def _list(self) -> tuple[Sequence[ClusterReplica], Sequence[ProcessRecord]]:
        """Return the replicas, and the records of those that have not served yet."""
        self._replicas.refresh()
        now = self._wall_time()
        shown = [
            each for each in self._replicas.records
            if each.state is not RecordState.STOPPED
            and not (each.is_replaced and elapsed(each.ended_at, now) >= FAILED_SECONDS)
        ]  # fmt: skip
        unserved = [each for each in shown if each.state is RecordState.ALIVE and not each.has_served]
        return [self._describe(each, now) for each in shown], unserved[:MAX_PROBES]

    def _describe(self, record: ProcessRecord, now: float) -> ClusterReplica:
        host = f"[{record.host}]" if ":" in record.host else record.host
        reason = record.note
        if record.state is RecordState.FAILED:
            lines = self._replicas.logs.last_lines(record.replica_id, NUM_LAST_LINES)
            reason = describe_restart(record, self._config, now, lines)
        return ClusterReplica(
            replica_id=record.replica_id, url=f"http://{host}:{record.port}" if host else "",
            state=self._replicas.placement_state(record), age_seconds=elapsed(record.started_at, now),
            version=record.version, node=socket.gethostname(), replica_type=record.replica_type, reason=reason,
        )  # fmt: skip

    def _read_logs(self) -> Sequence[tuple[str, str]]:
        records = self._replicas.records
        ids = [each.replica_id for each in records]
        self._replicas.logs.follow(ids)
        return self._replicas.logs.read(ids, {each.replica_id for each in records if not each.may_run})

    # -- in the event loop -----------------------------------------------------------------------------------------

    async def _probe(self, records: Sequence[ProcessRecord]) -> None:
        """Note which of these replicas serve."""
        answers = await asyncio.gather(*(is_serving(each.host, each.port, self._config.ready_path) for each in records))
        serving = [each.replica_id for each, answer in zip(records, answers, strict=True) if answer]
        if serving:
            with contextlib.suppress(ClusterFailed):  # the next round asks again
                await self._run(lambda: self._replicas.note_serving(serving))

    async def _run(self, work: Callable[[], T]) -> T:
        """Do work in the thread, after opening the folder. Raises ClusterFailed."""
        if self._closed.is_set():
            raise ClusterFailed("the cluster is closed")

        def open_and_work() -> T:
            self._replicas.open()
            return work()

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, open_and_work)
        except OSError as error:
            raise ClusterFailed(f"the state of the replicas in {self._config.folder} cannot be used: {error}") from None

"""LocalReplicas: the synchronous part of LocalCluster: what runs, what is started, stopped and restarted.

Every action is: write the record, then act on the process. So the controller may be killed between any two steps, and
the next one finds at `open` a record for each process, and finishes what the records ask for. Where the disk is full a
stop goes on without its record, which is written later; a start does not.
"""

import logging
import os
import signal
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from chairlift.cluster.base import ReplicaSpec
from chairlift.cluster.cluster_replica import PlacementState
from chairlift.cluster.local.local_config import LocalConfig
from chairlift.cluster.local.placement import choose_cpus, choose_gpus, choose_port, describe_cpus
from chairlift.cluster.local.process_record import ProcessRecord, RecordState
from chairlift.cluster.local.processes_and_sessions import REPLICA_VARIABLE, is_same_process, kill_session, start_ticks
from chairlift.cluster.local.replica_logs import ReplicaLogs
from chairlift.cluster.local.replica_process import reap, signal_process, spawn
from chairlift.cluster.local.restart_policy import (
    elapsed,
    end_reason,
    failures_after,
    holds_place,
    is_crash_loop,
    plan_restarts,
    restarts_after,
)
from chairlift.cluster.local.state_folder import StateFolder
from chairlift.core.cluster_errors import ClusterFailed
from chairlift.core.cpu_affinity_and_priority import usable_cpus

log = logging.getLogger(__name__)

MAX_STOPPED_KEPT = 50
"""Stopped replicas whose folders are kept at most."""

FLUSH_SECONDS = 1.0
"""Seconds that the folder of an ended replica stays in any case."""


class LocalReplicas:
    """The replicas of one fleet; all methods run in one thread and raise OSError and ClusterFailed."""

    def __init__(
        self, config: LocalConfig, wall_time: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._config, self._wall_time, self._monotonic = config, wall_time, monotonic
        self._folder = StateFolder(config.folder)
        self._cpus = usable_cpus() if config.cpus is None else config.cpus
        self._records: dict[str, ProcessRecord] = {}
        self._children: dict[str, int] = {}
        self._unwritten: set[str] = set()
        self._stopping_since: dict[str, float] = {}  # monotonic: the time of day may be set while a replica drains
        self._is_open = False
        self.logs = ReplicaLogs(self._folder, config.max_log_bytes)

    # -- state -----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Lock the folder, adopt what runs, and let failed replicas start anew; does nothing when it is open.

        Raises ClusterFailed and OSError; then the folder is not locked.
        """
        if self._is_open:
            return
        self._folder.open()
        try:
            self._adopt()
            self.refresh()
            self.release_failed()
        except BaseException:
            self._records.clear()
            self._folder.close()
            raise
        self._is_open = True
        if running := sum(each.may_run for each in self._records.values()):
            log.info("%d running replicas were found and are used", running)

    def _adopt(self) -> None:
        """Read the records; stop processes that have none."""
        removed_locks = self._folder.removed_locks()
        found = dict(self._folder.records())
        for replica_id in found.keys() | removed_locks.keys():
            record, pid = found.get(replica_id), removed_locks.get(replica_id, 0)
            if record is not None and pid and not record.start_ticks:
                record = replace(record, pid=pid, start_ticks=start_ticks(pid))
            if record is not None and (record.may_run or not pid):
                self._records[replica_id] = record
            elif pid or self._folder.is_locked(replica_id):
                now = self._wall_time()
                self._note(ProcessRecord(
                    replica_id=replica_id, port=0, state=RecordState.STOPPING, started_at=now, stopping_at=now,
                    pid=pid, start_ticks=start_ticks(pid) if pid else 0,
                    note="it is stopped because its record was removed or cannot be read",
                ))  # fmt: skip
            else:
                self._folder.remove(replica_id)

    def close(self) -> None:
        """Unlock the folder; replicas run on."""
        self._is_open = False
        self._folder.close()

    def refresh(self) -> None:
        """Note which replicas have ended, continue their stops, bound their logs, remove old folders."""
        self._folder.keep()
        now = self._wall_time()
        for each in list(self._records.values()):
            record = self._without_future(each, now)
            if record.may_run:
                record = self._with_process(record)
                self.logs.bound(record.replica_id)
                if not self._is_running(record):
                    self._note_end(record, now)
                elif record.state is RecordState.STOPPING:
                    self._advance_stop(record)
        for replica_id in sorted(self._unwritten):
            self._note(self._records[replica_id])
        self._remove_old(now)

    @property
    def records(self) -> Sequence[ProcessRecord]:
        """Records of all replicas, in the order of their starts."""
        return sorted(self._records.values(), key=lambda each: (each.started_at, each.replica_id))

    def placement_state(self, record: ProcessRecord) -> PlacementState:
        """Return the state of a replica that has not stopped."""
        if record.state is RecordState.ALIVE:
            has_process = self._folder.pid(record.replica_id) is not None
            return PlacementState.RUNNING if has_process else PlacementState.PENDING
        return PlacementState.STOPPING if record.state is RecordState.STOPPING else PlacementState.FAILED

    def note_serving(self, replica_ids: Collection[str]) -> None:
        """Note that replicas have answered their readiness check."""
        for replica_id in replica_ids:
            record = self._records.get(replica_id)
            if record is not None and record.may_run and not record.has_served:
                self._note(replace(record, has_served=True))

    # -- actions ---------------------------------------------------------------------------------------------------

    def start(self, spec: ReplicaSpec, count: int) -> None:
        """Start `count` replicas, and permit restarts of failed ones of this spec. Raises ClusterFailed."""
        assert count >= 0, count
        self.refresh()
        for record in self.records:
            if holds_place(record, spec.version):
                self._mark_replaced(record.replica_id)
        for _ in range(count):
            self._start_one(spec, None)

    def stop(self, replica_ids: Collection[str]) -> None:
        """Stop replicas; a failed one is not restarted, and its place is free."""
        self.refresh()
        for replica_id in replica_ids:
            self._stop_one(replica_id)
            self._mark_replaced(replica_id)

    def release_failed(self) -> None:
        """Free the places of all failed replicas: an operator asks for new ones."""
        for record in self.records:
            self._mark_replaced(record.replica_id)

    def scale(self, spec: ReplicaSpec, target: int, remove: Collection[str]) -> None:
        """Have `target` replicas that are not stopping. Raises ClusterFailed."""
        assert target >= 0, target
        self.refresh()
        for record in self.records:
            if record.version != spec.version:  # its settings have changed
                self._mark_replaced(record.replica_id)
        for replica_id in remove:
            self._stop_one(replica_id)
        alive = [each for each in self.records if each.state is RecordState.ALIVE]
        if len(alive) > target:
            pending = {each.replica_id for each in alive if self.placement_state(each) is PlacementState.PENDING}
            alive.sort(key=lambda each: (each.replica_id in pending, each.started_at, each.replica_id))
            for record in alive[target:]:
                self._stop_one(record.replica_id)
            return
        plan = plan_restarts(self.records, spec.version, target - len(alive), self._config, self._wall_time())
        for failed in plan.restarts:
            self._start_one(spec, failed)
        for _ in range(plan.num_new):
            self._start_one(spec, None)

    # -- steps -----------------------------------------------------------------------------------------------------

    def _start_one(self, spec: ReplicaSpec, failed: ProcessRecord | None) -> None:
        config, running = self._config, [each for each in self._records.values() if each.may_run]
        gpus = choose_gpus(spec.num_gpus, config.gpus, [each.gpus for each in running])
        taken = [each.cpus for each in running]
        cpus = choose_cpus(spec.num_cpus, self._cpus, taken)
        ended_ports = {each.port for each in self._records.values() if not each.may_run}
        port = choose_port(config.host, config.ports, {each.port for each in running}, ended_ports)
        record = ProcessRecord(
            replica_id=self._folder.create(), host=config.host, port=port, version=spec.version,
            replica_type=spec.replica_type,
            cpus=cpus, gpus=gpus, started_at=self._wall_time(), note=describe_cpus(spec.num_cpus, cpus, taken),
            num_failures=0 if failed is None else failures_after(failed),
            num_restarts=0 if failed is None else restarts_after(failed, config),
            replaces="" if failed is None else failed.replica_id,
        )  # fmt: skip
        try:
            lock = self._folder.take_lock(record.replica_id)
            try:
                self._folder.write(record)
                self._records[record.replica_id] = record
                self._spawn(record, lock, spec)
            finally:
                os.close(lock)
        except (OSError, ClusterFailed):
            self._remove(record.replica_id)  # else each attempt would leave a folder
            raise
        self._mark_replaced(record.replaces)

    def _spawn(self, record: ProcessRecord, lock: int, spec: ReplicaSpec) -> None:
        """Start a replica's process; one that the system does not start has failed. Raises ClusterFailed."""
        replica_id, command = record.replica_id, self._command(spec, record.port)
        environ = self._environ(spec, record.gpus) | {REPLICA_VARIABLE: replica_id}
        try:
            pid = spawn(self._folder.path(replica_id), lock, command, environ, record.cpus)
        except OSError as error:
            note = f"its process cannot be started: {error}"
            self._fail(replace(record, ended_at=self._wall_time(), note=note))
        except (ValueError, TypeError) as error:
            raise ClusterFailed(
                f"no process can have the model, options or environment of these replicas: {error}; correct them"
            ) from None
        else:
            self._children[replica_id] = pid
            self._note(replace(record, pid=pid, start_ticks=start_ticks(pid)))
            log.info("replica %s is started at port %d, process %d", replica_id, record.port, pid)

    def _command(self, spec: ReplicaSpec, port: int) -> list[str]:
        model = [spec.model] if spec.model else []
        return [*self._config.command, *model, "--host", self._config.host, "--port", str(port), *spec.arguments]

    def _environ(self, spec: ReplicaSpec, gpus: Sequence[str]) -> dict[str, str]:
        """Return a replica's environment; where GPUs are given out it sees its own ones alone, or none."""
        base = os.environ if self._config.environ is None else self._config.environ
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if self._config.gpus else {}
        return {**base, **spec.environ, **visible}

    def _is_running(self, record: ProcessRecord) -> bool:
        """Return whether a replica's process runs: its lock is held, or gone, and the process is the noted one.

        The lock alone is not enough where children of the replica have inherited it.
        """
        is_locked = self._folder.is_locked(record.replica_id)
        if not record.start_ticks:
            return bool(is_locked)
        return is_locked is not False and is_same_process(record.pid, record.start_ticks)

    def _with_process(self, record: ProcessRecord) -> ProcessRecord:
        """Note which process a replica has, and write its files again if they were removed."""
        replica_id = record.replica_id
        if not record.start_ticks:
            pid = self._children.get(replica_id) or self._folder.pid(replica_id)
            ticks = 0 if pid is None else start_ticks(pid)
            if pid is not None and ticks and self._folder.is_locked(replica_id):  # so the process id was not used again
                record = replace(record, pid=pid, start_ticks=ticks)
                self._note(record)
        elif not self._folder.has_record(replica_id):
            self._unwritten.add(replica_id)
        return record

    def _stop_one(self, replica_id: str) -> None:
        record = self._records.get(replica_id)
        if record is not None and record.state is RecordState.ALIVE:
            record = replace(record, state=RecordState.STOPPING, stopping_at=self._wall_time())
            self._stopping_since[replica_id] = self._monotonic()
            self._note(record)
            self._advance_stop(record)

    def _advance_stop(self, record: ProcessRecord) -> None:
        """Send SIGTERM once, and SIGKILL after the timeout.

        After a crash between the signal and its note SIGTERM is sent again: a replica then ends without draining. The
        other order would leave a replica running that never got the signal.
        """
        replica_id = record.replica_id
        pid = record.pid or self._folder.pid(replica_id) or self._children.get(replica_id)
        if not pid:  # the script in front of it has not noted it yet
            return
        number = signal.SIGTERM
        if self._stopping_seconds(record) >= self._config.stop_timeout:
            number = signal.SIGKILL
        elif record.is_signalled:
            return
        if signal_process(pid, number, lambda: self._is_running(record)):
            is_killed = number is signal.SIGKILL
            if is_killed and not record.is_killed:
                log.warning("replica %s did not stop within %g s and is killed", replica_id, self._config.stop_timeout)
            self._note(replace(record, is_signalled=True, is_killed=is_killed))

    def _stopping_seconds(self, record: ProcessRecord) -> float:
        """Return how long a replica stops; the part before this controller is one of the time of day."""
        now = self._monotonic()
        before = elapsed(record.stopping_at, self._wall_time())
        return now - self._stopping_since.setdefault(record.replica_id, now - before)

    def _note_end(self, record: ProcessRecord, now: float) -> None:
        """Note that a replica's process has ended, unless the system has not reported it yet."""
        exit_code, pid = None, self._children.get(record.replica_id)
        if pid is not None:
            is_gone, exit_code = reap(pid)
            if not is_gone:
                return
            del self._children[record.replica_id]
        elif not (session := record.pid or self._folder.pid(record.replica_id)):
            self._remove(record.replica_id)  # its controller was killed before the process existed
            return
        elif not start_ticks(session):  # else another process has the id, so the session has no members left
            kill_session(session, record.replica_id)
        record = replace(record, ended_at=now, exit_code=exit_code)
        if record.state is RecordState.STOPPING:
            self._note(replace(record, state=RecordState.STOPPED))
            log.info("replica %s has stopped", record.replica_id)
        else:
            self._fail(replace(record, note=""))

    def _fail(self, record: ProcessRecord) -> None:
        self._note(replace(record, state=RecordState.FAILED))
        log.warning("replica %s has failed: %s", record.replica_id, end_reason(record))
        if is_crash_loop(record, self._config):
            log.error("crash loop: replica %s is not restarted after %d starts in a row that ended without serving",
                      record.replica_id, failures_after(record))  # fmt: skip

    def _mark_replaced(self, replica_id: str) -> None:
        """Note that a failed replica needs no other one; does nothing for others."""
        record = self._records.get(replica_id)
        if record is not None and record.state is RecordState.FAILED and not record.is_replaced:
            self._note(replace(record, is_replaced=True))

    def _note(self, record: ProcessRecord) -> None:
        """Keep a record and write it; one that cannot be written now, say on a full disk, is written by `refresh`."""
        replica_id = record.replica_id
        self._records[replica_id] = record
        try:
            self._folder.write(record)
        except OSError as error:
            if replica_id not in self._unwritten:
                log.warning("the record of replica %s cannot be written, which is tried again: %s", replica_id, error)
            self._unwritten.add(replica_id)
        else:
            self._unwritten.discard(replica_id)

    def _without_future(self, record: ProcessRecord, now: float) -> ProcessRecord:
        """Begin periods again that, because the clock was set back, begin in the future."""
        if max(record.stopping_at, record.ended_at) > now:
            record = replace(record, stopping_at=min(record.stopping_at, now), ended_at=min(record.ended_at, now))
            self._records[record.replica_id] = record
        return record

    def _remove_old(self, now: float) -> None:
        """Remove the folders of stopped replicas after a while, and those of failed ones but the latest."""
        newest = sorted(self._records.values(), key=lambda each: (-each.ended_at, each.replica_id))
        stopped = [each for each in newest if each.state is RecordState.STOPPED]
        failed = [each for each in newest if each.state is RecordState.FAILED and each.is_replaced]
        expired = [each for each in stopped if elapsed(each.ended_at, now) >= self._config.keep_seconds]
        for record in {*expired, *stopped[MAX_STOPPED_KEPT:], *failed[self._config.num_failed_kept :]}:
            if elapsed(record.ended_at, now) >= min(FLUSH_SECONDS, self._config.keep_seconds):
                self._remove(record.replica_id)

    def _remove(self, replica_id: str) -> None:
        self.logs.forget(replica_id)
        self._folder.remove(replica_id)
        self._records.pop(replica_id, None)
        self._stopping_since.pop(replica_id, None)
        self._unwritten.discard(replica_id)

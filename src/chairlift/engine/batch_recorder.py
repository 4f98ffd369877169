"""BatchRecorder: records the last steps and describes the whole batch, while someone reads its snapshots."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby, islice

from chairlift.core.request import GenerateRequest
from chairlift.engine.batch_snapshot import COMPILING, HELD, BatchSnapshot, SequenceRow, SequenceState, StepRecord
from chairlift.engine.scheduler.in_flight_step import InFlightStep
from chairlift.engine.scheduler.scheduler import Scheduler
from chairlift.engine.sequence import Sequence, SequenceStatus
from chairlift.engine.state_snapshot import wait_reason_of

UNREAD_SECONDS = 3.0
"""Seconds without a snapshot after which recording ends."""

MAX_STEPS = 16
"""Steps in a snapshot, the newest ones."""

MAX_ROWS = 512
"""Sequences in a snapshot."""

MAX_CELLS = 2000
"""Cells of a block map."""

MAX_NAMED_BLOCKS = 50_000
"""Blocks in block tables up to which a block map names the row of each; reading that many takes about 5 ms. With more
held blocks the map only tells held blocks from others."""

MAP_SECONDS = 0.5
"""Seconds between two block maps at least."""

MAP_CPU_SHARE = 0.01
"""Share of a core that block maps may take: a map that takes longer is made less often."""


class BatchRecorder:
    """Belongs to the engine's thread; exists only while snapshots are read, so that nothing is recorded otherwise."""

    def __init__(self, cpu_seconds: Callable[[], float] = time.thread_time) -> None:
        """Begin to record; `cpu_seconds` returns the time for which this thread has computed."""
        self._cpu_seconds = cpu_seconds
        self._steps: deque[StepRecord] = deque(maxlen=MAX_STEPS)
        self._last_end = 0.0
        self._read_at = 0.0
        self._map: list[int] = []
        self._map_due_at = -math.inf

    def is_unread(self, now: float) -> bool:
        """Return whether the last snapshot was read too long ago."""
        return now - self._read_at > UNREAD_SECONDS

    def record(self, step: InFlightStep, started_at: float, ended_at: float) -> None:
        """Record a committed step; times are seconds of one clock."""
        keys, num_decodes = [sequence.arrival_index for sequence in step.sequences], step.num_decodes
        decodes, prefills = keys[:num_decodes], []
        for row in range(num_decodes, len(keys)):
            if step.num_drafts_of(row):
                decodes.append(keys[row])
            else:
                prefills.append((keys[row], step.ends[row] - step.starts[row]))
        duration = ended_at - max(started_at, self._last_end)
        self._last_end = ended_at
        self._steps.append(StepRecord(
            step.plan.step_id, round(duration * 1e3, 3), step.plan.num_tokens, prefills, decodes,
        ))  # fmt: skip

    def snapshot(self, scheduler: Scheduler, now: float) -> BatchSnapshot:
        """Return the batch at this moment; takes time for each row and each cell of the block map."""
        self._read_at = now
        rows = list(islice(_rows(scheduler, now), MAX_ROWS))
        counters, limits, counts = scheduler.counters, scheduler.table.limits, scheduler.cache.counts()
        stride = -(-counts.total // MAX_CELLS)
        if now >= self._map_due_at:
            started_at = self._cpu_seconds()
            self._map = _block_map(scheduler, stride)
            self._map_due_at = now + max(MAP_SECONDS, (self._cpu_seconds() - started_at) / MAP_CPU_SHARE)
        return BatchSnapshot(
            rows=rows, num_hidden_rows=len(scheduler.sequences) - len(rows), recent_steps=list(self._steps),
            num_steps=counters.steps, scheduled_tokens=counters.scheduled_tokens,
            output_tokens=counters.output_tokens, num_preemptions=counters.preemptions,
            num_running=len(scheduler.running), num_waiting=len(scheduler.waiting),
            waiting_tokens=scheduler.waiting_tokens, wait_reason=scheduler.wait_clock.reason,
            num_in_flight=len(scheduler.in_flight_steps), max_running_requests=limits.max_running_requests,
            max_batch_tokens=limits.max_batch_tokens, block_size=scheduler.cache.config.block_size,
            total_blocks=counts.total, free_blocks=counts.free, cached_blocks=counts.cached,
            held_blocks=counts.held, withheld_blocks=counts.withheld, block_map=self._map, blocks_per_cell=stride,
        )  # fmt: skip


def _rows(scheduler: Scheduler, now: float) -> Iterator[SequenceRow]:
    """Yield the rows of running sequences, of waiting ones in order, and of choices that wait for their prompt."""
    block_size, clock_seconds = scheduler.cache.config.block_size, scheduler.wait_clock.read(now)
    reason = scheduler.wait_clock.reason
    with_deferred: dict[str, None] = {}
    for sequence in scheduler.running.values():
        yield _row(sequence, "", block_size, clock_seconds, now)
        with_deferred[sequence.request_id] = None
    for sequence in scheduler.waiting:
        yield _row(sequence, wait_reason_of(sequence, reason), block_size, clock_seconds, now)
        with_deferred[sequence.request_id] = None
    for request_id in with_deferred:
        for sequence in scheduler.sequence_groups[request_id].deferred:
            yield _row(sequence, wait_reason_of(sequence, reason), block_size, clock_seconds, now)


def _row(
    sequence: Sequence, wait_reason: str, block_size: int, clock_seconds: list[float], now: float
) -> SequenceRow:  # fmt: skip
    request, recorder, table = sequence.request, sequence.timeline_recorder, sequence.table
    drafts = sequence.draft_record
    num_cached = sequence.cached_tokens
    return SequenceRow(
        sequence.arrival_index, sequence.request_id, sequence.choice_index, request.tenant, _state(sequence),
        wait_reason, request.priority, sequence.num_prompt_tokens, num_cached, sequence.num_computed_tokens,
        sequence.num_output_tokens, sequence.max_output_tokens, 0 if table is None else table.num_held,
        0 if table is None else num_cached // block_size, sequence.num_preemptions,
        round(now - recorder.queued_at, 2), round(recorder.wait_seconds(clock_seconds, now), 2),
        0 if drafts is None else drafts.num_confirmed, 0 if drafts is None else drafts.num_rejected,
    )  # fmt: skip


def _state(sequence: Sequence) -> str:
    if sequence.status is not SequenceStatus.RUNNING:
        return SequenceState.PREEMPTED if sequence.epoch else SequenceState.WAITING
    is_decoding = sequence.num_output_tokens and sequence.num_computed_tokens >= len(sequence.token_ids) - 1
    return SequenceState.DECODE if is_decoding else SequenceState.PREFILL


def _block_map(scheduler: Scheduler, stride: int) -> list[int]:
    """Return the map of every stride-th block in runs."""
    cells = scheduler.cache.pool.states(stride)
    tables = {
        sequence.arrival_index: sequence.table
        for sequence in scheduler.running.values() if sequence.table is not None
    }  # fmt: skip
    if sum(table.num_held for table in tables.values()) <= MAX_NAMED_BLOCKS:
        for key, table in tables.items():
            for _, _, block in table.held():
                if not block % stride and cells[block // stride] == HELD:
                    cells[block // stride] = key
    runs: list[int] = []
    for value, run in groupby(cells):
        runs += (value, sum(1 for _ in run))
    return runs


def with_compiling_requests(
    snapshot: BatchSnapshot, requests: Iterable[tuple[int, GenerateRequest, float]]
) -> BatchSnapshot:  # fmt: skip
    """Add the requests whose grammars are compiled as waiting rows.

    Each has a number of its own, and the seconds that it has waited.
    """
    compiling = [
        SequenceRow(
            COMPILING - number, request.request_id, 0, request.tenant, SequenceState.WAITING, "grammar",
            request.priority, len(request.prompt_token_ids), 0, 0, 0, request.params.max_tokens or 0, 0, 0, 0,
            round(seconds, 2), round(seconds, 2),
        )
        for number, request, seconds in requests
    ]  # fmt: skip
    if not compiling:
        return snapshot
    shown = compiling[: max(0, MAX_ROWS - len(snapshot.rows))]
    return replace(
        snapshot, rows=[*snapshot.rows, *shown],
        num_hidden_rows=snapshot.num_hidden_rows + len(compiling) - len(shown),
        num_waiting=snapshot.num_waiting + len(compiling),
        waiting_tokens=snapshot.waiting_tokens + sum(row.prompt_tokens for row in compiling),
    )  # fmt: skip

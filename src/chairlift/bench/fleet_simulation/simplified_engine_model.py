"""SimplifiedEngineModel: one replica as a batch of counters, with steps like the real scheduler's and their times.

It follows StepScheduler for the queue `fifo` and the batching policy `mixed` without prefix caching, overlap or an ITL
target. Equal decode steps in a row are computed at once: with R rows and C context tokens the k-th of them takes
a + k * d seconds, where a is the time of the first one and d = R * context_token. Such a run ends with the first
request that finishes, with the first step that finds too few blocks, or when a request arrives that could start.
test_simplified_engine_model.py compares its times with those of EngineLoop.
"""

import math
from bisect import insort
from dataclasses import dataclass, field
from operator import attrgetter

from chairlift.bench.fleet_simulation.sim_request_and_interfaces import SimRequest, SimStepOutputs
from chairlift.bench.simulation.sim_step_model import SimStepModel, StepWork
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.scheduler.running_scheduler import GROWTH_RESERVE_TOKENS, MAX_PARALLEL_PREFILLS
from chairlift.engine.scheduler.step_scheduler import MAX_SKIPPED_WAITING

_arrival = attrgetter("arrival")


@dataclass(slots=True, eq=False)
class _Row:
    """One sequence; `known` are its prompt and output tokens, `scheduled` those that are computed."""

    request: SimRequest
    arrival: int
    known: int
    max_length: int
    scheduled: int = 0
    num_blocks: int = 0
    num_preemptions: int = 0
    num_bypasses: int = 0
    last_token_at: float | None = None

    @property
    def missing(self) -> int:
        """Tokens that are known and not computed."""
        return self.known - self.scheduled


_missing = attrgetter("missing")


@dataclass(slots=True)
class _Step:
    """The step that is being filled or runs."""

    tokens_left: int
    prefill_left: int
    decodes: list[_Row] = field(default_factory=list)
    chunks: dict[_Row, int] = field(default_factory=dict)
    is_preempted: bool = False

    def add_prefill(self, row: _Row, count: int) -> None:
        self.chunks[row] = self.chunks.get(row, 0) + count
        self.tokens_left -= count
        self.prefill_left -= count

    def remove(self, row: _Row) -> None:
        if (count := self.chunks.pop(row, 0)) > 0:
            self.tokens_left += count
            self.prefill_left += count
        elif row in self.decodes:
            self.decodes.remove(row)
            self.tokens_left += 1


@dataclass(slots=True)
class _DecodeRun:
    """Equal decode steps in a row; `first_seconds` is the time of the first, each later one takes `growth` more."""

    started_at: float
    num_steps: int
    first_seconds: float
    growth: float

    def end_of(self, count: int) -> float:
        """Return the time at which the first `count` steps are done."""
        return self.started_at + count * self.first_seconds + self.growth * (count * (count - 1) / 2)

    def num_ended(self, now: float) -> int:
        """Return how many steps are done at `now`."""
        half, seconds = self.growth / 2, now - self.started_at
        linear = self.first_seconds - half
        root = math.sqrt(linear**2 + 4 * half * seconds) if half else 0.0
        count = int((root - linear) / (2 * half) if half else seconds / linear)
        # The root is rounded, but whether a step is done is decided by end_of() alone, as everywhere else.
        while count and self.end_of(count) > now:
            count -= 1
        while self.end_of(count + 1) <= now:
            count += 1
        return count


class SimplifiedEngineModel:
    """Serves requests step by step or in runs of steps; see ServingModel."""

    def __init__(self, step_model: SimStepModel, config: SchedulerConfig, num_blocks: int, block_size: int) -> None:
        self.next_event_at = math.inf
        self.busy_seconds, self.output_tokens = 0.0, 0
        self.num_preemptions = 0
        self._seconds, self._context_token = step_model.seconds, step_model.decode_context_token
        self._config, self._max_running = config, config.max_running_sequences
        self._prefill_budget, self._max_chunk = config.prefill_budget, config.max_prefill_chunk
        self._fair_chunk, self._final_chunk = config.fair_prefill_chunk, config.final_prefill_chunk
        self._total_blocks = self._free_blocks = num_blocks
        self._block_size = block_size
        self._running: dict[int, _Row] = {}  # in the order of their starts
        self._waiting: list[_Row] = []  # in the order of their arrivals
        self._step: _Step | None = None
        self._run: _DecodeRun | None = None
        self._started_at = 0.0  # of the step or run in progress
        self._is_blocked = False  # the last step could start nothing, and nothing has changed since
        self._num_arrivals = 0

    @property
    def kv_usage_ratio(self) -> float:
        """Share of the blocks that requests hold."""
        return 1 - self._free_blocks / self._total_blocks

    def submit(self, request: SimRequest, now: float) -> None:
        """Queue a request; it can start at the end of the step that runs now."""
        row = _Row(request, self._num_arrivals, request.prompt_tokens, request.prompt_tokens + request.output_tokens)
        assert self._blocks_for(row.max_length - 1) <= self._total_blocks, "the request is longer than the KV cache"
        self._num_arrivals += 1
        self._is_blocked = False
        self._waiting.append(row)
        if self._step is None and self._run is None:
            self.next_event_at = min(self.next_event_at, now)
        # A run is cut at the end of the step in progress, where the request can start. The first step runs in any case.
        elif self._run is not None and len(self._running) < self._max_running:
            ended = self._run.num_ended(now)
            ended += self._run.end_of(ended) < now
            self._run.num_steps = min(self._run.num_steps, max(1, ended))
            self.next_event_at = self._run.end_of(self._run.num_steps)

    def withdraw(self, request: SimRequest) -> bool:
        """Take back a request that has not started; return whether it had not."""
        waiting = [row for row in self._waiting if row.request is not request]
        is_withdrawn = len(waiting) < len(self._waiting)
        self._waiting, self._is_blocked = waiting, self._is_blocked and not is_withdrawn
        return is_withdrawn

    def advance(self) -> SimStepOutputs:
        """End the step or run that ends now, and start the next."""
        now, outputs = self.next_event_at, SimStepOutputs()
        if self._run is not None:
            self._end_run(self._run.num_steps, now, outputs)
            self._run = None
        elif self._step is not None:
            self._end_step(self._step, now, outputs)
            self._step = None
        self.next_event_at = math.inf
        if self._running or self._waiting:
            self._start(now)
        return outputs

    def update_progress(self, now: float) -> None:
        """Count the steps that are done, and the part of the one in progress as busy."""
        run = self._run
        # The last step is left to advance(): only there what finishes is reported.
        if run is not None and (ended := min(run.num_ended(now), run.num_steps - 1)) > 0:
            started_at = run.end_of(ended)
            self._end_run(ended, started_at, SimStepOutputs())
            run.first_seconds += run.growth * ended
            run.started_at, run.num_steps = started_at, run.num_steps - ended
        if self._run is not None or self._step is not None:
            self.busy_seconds += now - self._started_at
            self._started_at = now

    # -- ends ------------------------------------------------------------------------------------------------------

    def _end_run(self, count: int, now: float, outputs: SimStepOutputs) -> None:
        run = self._run
        assert run is not None
        # Steps of a run become longer, so its last one is the longest gap between two tokens.
        gap, size, finished = run.first_seconds + run.growth * (count - 1), self._block_size, False
        for row in self._running.values():
            row.known += count
            row.scheduled += count
            row.last_token_at = now
            # Never negative: between steps a row has no block beyond its tokens.
            missing = -(-row.scheduled // size) - row.num_blocks
            row.num_blocks += missing
            self._free_blocks -= missing
            row.request.longest_gap_seconds = max(row.request.longest_gap_seconds, gap)
            finished = finished or row.known >= row.max_length
        self.output_tokens += count * len(self._running)
        self.busy_seconds += now - self._started_at
        self._started_at = now
        if finished:
            for row in [row for row in self._running.values() if row.known >= row.max_length]:
                self._finish(row, outputs)

    def _end_step(self, step: _Step, now: float, outputs: SimStepOutputs) -> None:
        self.busy_seconds += now - self._started_at
        for row in (*step.decodes, *step.chunks):
            if row.scheduled < row.known:
                continue
            row.known += 1
            self.output_tokens += 1
            if row.last_token_at is None:
                row.request.first_token_at = now
                outputs.first_tokens.append(row.request)
            else:
                row.request.longest_gap_seconds = max(row.request.longest_gap_seconds, now - row.last_token_at)
            row.last_token_at = now
            if row.known >= row.max_length:
                self._finish(row, outputs)

    def _finish(self, row: _Row, outputs: SimStepOutputs) -> None:
        del self._running[row.arrival]
        self._free_blocks += row.num_blocks
        self._is_blocked = False
        outputs.finished.append(row.request)

    # -- starts ----------------------------------------------------------------------------------------------------

    def _start(self, now: float) -> None:
        """Start a run of decode steps, or one step."""
        self._started_at, rows, size = now, self._running.values(), self._block_size
        if not self._waiting or self._is_blocked or len(rows) >= self._max_running:
            context = growth = 0
            steps = self._total_blocks * size
            for row in rows:
                # This row still prefills: its next step is not like the others.
                if row.last_token_at != now:
                    break
                context += row.known
                # The last token is not computed, so it needs no slot.
                growth += -(-(row.max_length - 1) // size) - row.num_blocks
                steps = min(steps, row.max_length - row.known)
            else:
                if growth > self._free_blocks:
                    steps = self._steps_with_blocks(steps)
                if steps > 0:
                    first = self._seconds(StepWork(1, len(rows), 0, context, 0))
                    self._run = _DecodeRun(now, steps, first, len(rows) * self._context_token)
                    self.next_event_at = self._run.end_of(steps)
                    return
        self._step = self._fill_step()
        self.next_event_at = now + self._launch(self._step)

    def _steps_with_blocks(self, most: int) -> int:
        """Return how many decode steps, at most `most`, find enough blocks for every row."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            needed = sum(self._blocks_for(row.scheduled + middle) - row.num_blocks for row in self._running.values())
            low, high = (middle, high) if needed <= self._free_blocks else (low, middle - 1)
        return low

    def _launch(self, step: _Step) -> float:
        """Count the tokens of a step as computed; return its seconds."""
        prefill = context = pairs = 0
        for row in step.decodes:
            row.scheduled += 1
            context += row.scheduled
        for row, count in step.chunks.items():
            if count > 1:
                prefill += count
                pairs += count * row.scheduled + count * (count + 1) // 2
            row.scheduled += count
            context += row.scheduled
        return self._seconds(StepWork(1, len(step.decodes) + len(step.chunks), prefill, context, pairs))

    def _fill_step(self) -> _Step:
        step = _Step(self._config.max_batch_tokens, self._prefill_budget)
        prefilling = [row for row in self._running.values() if row.missing > 1]
        self._add_decodes(step, [row for row in self._running.values() if row.missing == 1])
        fair_chunk = self._fair_chunk_of(step)
        self._add_prefills(step, prefilling, fair_chunk)
        if not step.is_preempted:
            self._start_waiting(step, prefilling, fair_chunk)
            for row, count in list(step.chunks.items()):
                self._add_rest(step, row, count)
        # The queue would end at the same request until an arrival or an end changes something.
        self._is_blocked = not step.chunks and not step.is_preempted
        return step

    def _add_decodes(self, step: _Step, rows: list[_Row]) -> None:
        size = self._block_size
        ready = [row for row in rows if row.scheduled < row.num_blocks * size][: step.tokens_left]
        step.decodes += ready
        step.tokens_left -= len(ready)
        for row in [row for row in rows if row.scheduled >= row.num_blocks * size]:
            if step.tokens_left < 1:
                return
            if row.arrival in self._running and self._reserve_or_preempt(step, row, 1):
                step.decodes.append(row)
                step.tokens_left -= 1

    def _fair_chunk_of(self, step: _Step) -> int:
        granted = min(step.prefill_left, step.tokens_left)
        share = max(1, granted // MAX_PARALLEL_PREFILLS, self._fair_chunk * granted // self._prefill_budget)
        return min(self._fair_chunk, share)

    def _chunk(self, step: _Step, missing: int, fair_chunk: int) -> int:
        final = fair_chunk * self._final_chunk // self._fair_chunk
        return min(missing, missing if missing <= final else fair_chunk, step.tokens_left, step.prefill_left)

    def _prefills_sequentially(self, prefilling: list[_Row]) -> bool:
        if not (prefilling and self._config.may_prefill_sequentially):
            return False
        least = min(row.missing for row in prefilling)
        others = self._waiting[: max(0, MAX_PARALLEL_PREFILLS - len(prefilling))]
        return all(row.known >= least for row in others)

    def _add_prefills(self, step: _Step, prefilling: list[_Row], fair_chunk: int) -> None:
        order, nearest = prefilling, None
        is_sequential = self._prefills_sequentially(prefilling)
        if is_sequential:
            nearest = min(prefilling, key=_missing)
            order = [prefilling[0], *sorted(prefilling[1:], key=_missing)]
        for row in order:
            count = self._chunk(step, row.missing, fair_chunk)
            if row.arrival not in self._running or count < 1 or not self._reserve_or_preempt(step, row, count):
                continue
            step.add_prefill(row, count)
            if is_sequential and (row is nearest or row is not prefilling[0]):
                self._add_rest(step, row, count)

    def _add_rest(self, step: _Step, row: _Row, count: int) -> None:
        """Give a row more than its `count` prompt tokens, as far as blocks are free."""
        more = min(row.missing - count, self._max_chunk - count, step.tokens_left, step.prefill_left)
        if more >= 1 and self._reserve(row, row.scheduled + count + more):
            step.add_prefill(row, more)

    def _start_waiting(self, step: _Step, prefilling: list[_Row], fair_chunk: int) -> None:
        reserved = sum(max(0, self._blocks_for(row.known) - row.num_blocks) for row in prefilling)
        started: list[int] = []
        bypassed: list[_Row] = []
        num_examined = 0
        for place, row in enumerate(self._waiting):
            num_running = len(self._running) + len(started)
            if min(step.tokens_left, step.prefill_left) < 1 or num_running >= self._max_running:
                break
            if num_examined >= MAX_SKIPPED_WAITING:
                break
            num_examined += 1
            room = self._free_blocks - reserved - self._blocks_for(num_running * GROWTH_RESERVE_TOKENS)
            if room < 1 or len(bypassed) > self._config.max_bypass:
                break
            if room < self._blocks_for(row.known):
                if row.num_bypasses >= self._config.max_bypass:
                    break
                bypassed.append(row)
                continue
            count = max(1, self._chunk(step, row.known, fair_chunk))
            if not self._reserve(row, count):
                break
            step.add_prefill(row, count)
            reserved += max(0, self._blocks_for(row.known) - row.num_blocks)
            started.append(place)
            num_examined -= 1
            for each in bypassed:
                each.num_bypasses += 1
            if any(each.num_bypasses >= self._config.max_bypass for each in bypassed):
                break
        for row in [self._waiting[place] for place in started]:
            self._running[row.arrival] = row
        # From the back, so that the places before stay valid.
        for place in reversed(started):
            del self._waiting[place]

    # -- blocks ----------------------------------------------------------------------------------------------------

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def _reserve(self, row: _Row, num_tokens: int) -> bool:
        """Give a row the blocks for `num_tokens`; return False, without a change, when too few are free."""
        missing = max(0, self._blocks_for(num_tokens) - row.num_blocks)
        if missing > self._free_blocks:
            return False
        row.num_blocks += missing
        self._free_blocks -= missing
        return True

    def _reserve_or_preempt(self, step: _Step, row: _Row, count: int) -> bool:
        while not self._reserve(row, row.scheduled + count):
            assert len(self._running) > 1, "a request that is alone has all blocks"
            victim = min(self._running.values(), key=self._loss)
            step.remove(victim)
            step.is_preempted = True
            self._preempt(victim)
            if victim is row:
                return False
        return True

    def _loss(self, row: _Row) -> tuple[int, int, int]:
        if row.num_preemptions >= self._config.protect_after_preemptions:
            return 1, 0, -row.arrival
        return 0, row.scheduled, -row.arrival

    def _preempt(self, row: _Row) -> None:
        del self._running[row.arrival]
        self._free_blocks += row.num_blocks
        row.scheduled = row.num_blocks = 0
        row.num_preemptions += 1
        self.num_preemptions += 1
        insort(self._waiting, row, key=_arrival)

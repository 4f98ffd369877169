"""Scheduler: decides each step; a deterministic state machine that reads no clock and does no I/O.

    add ──► line ──board──► running ──finish──► gone        schedule(now) -> StepPlan     hands tokens out
              ▲               │                             commit(result, now)           takes results in
              └────preempt────┘                             rollback(plan, error, now)    takes a step back

The lists are roster.py, who rides in a step is decided in boarding.py, what is on its way lies in flight.py.
"""

from collections import deque
from heapq import heapify, heappop, heappush

from chairlift.core.errors import (
    DuplicateRequestId,
    ForwardFailed,
    QueueFull,
    RequestFailed,
    RequestTimeout,
)
from chairlift.core.request import FinishReason, GenerateRequest, Output, TokenLogprob
from chairlift.engine.admission import Limits, check
from chairlift.engine.batching import make_batching
from chairlift.engine.boarding import Boarding
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.flight import Draft, Flight
from chairlift.engine.kv.cache import KVCache
from chairlift.engine.kv.hashing import root_hash
from chairlift.engine.plan import StepPlan, StepResult
from chairlift.engine.roster import Roster
from chairlift.engine.sequence import Sequence, Status


class Scheduler:
    """Everything that is decided about the requests of one engine. Not thread-safe; one loop owns it."""

    def __init__(self, config: SchedulerConfig, cache: KVCache, limits: Limits) -> None:
        self.config = config
        self.cache = cache
        self.limits = limits
        self.roster = roster = Roster(config, cache)
        self.line, self.running, self.sequences = roster.line, roster.running, roster.sequences
        self.wait_clock, self.counters = roster.wait_clock, roster.counters
        self.flights: deque[Flight] = deque()
        batching = make_batching(config.batching, config.safety_margin)
        self._boarding = Boarding(config, cache, roster, batching, limits.lookahead)
        self._suspects: list[list[Sequence]] = []
        self._deadlines: list[tuple[float, int, str]] = []
        self._arrivals = 0
        self._steps = 0
        self._block_size, self._caching = cache.config.block_size, cache.config.enable_prefix_caching
        self._windowed = any(window is not None for window in cache.config.windows)

    # -- intake ----------------------------------------------------------------------------------------------------

    def add(self, request: GenerateRequest, now: float) -> None:
        """Put a request in line.

        Raises InvalidRequest (or a kind of it) when it can never be served, DuplicateRequestId, QueueFull.
        """
        check(request, self.limits)
        if request.request_id in self.sequences:
            raise DuplicateRequestId(request.request_id)
        if len(self.line) >= self.config.max_queue_size:
            raise QueueFull(len(self.line), self.config.max_queue_size)
        root = root_hash(self.cache.config.model_id, request.adapter, request.tenant)
        sequence = Sequence(request, self._arrivals, root, now)
        self._arrivals += 1
        if self._caching:
            sequence.name_blocks(self._block_size)
        if sequence.deadline is not None:
            self._tidy_deadlines()
            heappush(self._deadlines, (sequence.deadline, sequence.arrival, request.request_id))
        self.sequences[request.request_id] = sequence
        self.roster.join_line(sequence, now)

    def abort(self, request_id: str, now: float) -> Output | None:
        """End a request wherever it is; returns its last Output, None when it is not open."""
        sequence = self.sequences.get(request_id)
        return None if sequence is None else self.roster.finish(sequence, FinishReason.ABORT, now)

    def expire(self, now: float) -> list[Output]:
        """End the requests whose time is up; returns their last Outputs."""
        ended, self.roster.ended = self.roster.ended, []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, arrival, request_id = heappop(self._deadlines)
            sequence = self.sequences.get(request_id)
            if sequence is not None and sequence.arrival == arrival:
                error = RequestTimeout(sequence.request.timeout or 0.0)
                ended.append(self.roster.finish(sequence, FinishReason.ERROR, now, error=error))
        return ended

    def _tidy_deadlines(self) -> None:
        """Drop those of requests that have ended, when they are most of the heap."""
        if len(self._deadlines) > 2 * len(self.sequences) + 64:
            is_open = {(sequence.arrival, name) for name, sequence in self.sequences.items()}
            self._deadlines = [entry for entry in self._deadlines if entry[1:] in is_open]
            heapify(self._deadlines)

    @property
    def waiting_tokens(self) -> int:
        """Tokens in line, still to be computed."""
        return self.roster.waiting_tokens

    @property
    def unused_slots(self) -> int:
        """Token slots that riding sequences hold and that no confirmed token fills yet."""
        tables = ((sequence.table, sequence.num_computed) for sequence in self.running.values())
        return len(self.cache.layouts) * sum(table.capacity - computed for table, computed in tables if table)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing in line, nothing riding and nothing in flight."""
        return not (self.sequences or self.flights or self.roster.ended)

    # -- one step --------------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan | None:
        """Decide the next step; None when nothing can ride before a launched step is committed, or at all."""
        assert len(self.flights) < self.config.depth, "more launches than the overlap allows"
        if self._suspects and self.flights:
            return None
        draft = Draft(self.config.max_batch_tokens, self.config.prefill_budget, in_flight=len(self.flights))
        while self._suspects and not draft.rows:
            self._boarding.ride(draft, self._suspects.pop(), now)
        if not draft.rows:
            self._boarding.fill(draft, now)
        if not draft.rows:
            return None
        flight = draft.launch(self._steps, tuple(self.roster.released))
        self.roster.released.clear()
        self._steps += 1
        self.flights.append(flight)
        self.counters.launched(flight, len(self.flights))
        return flight.plan

    def commit(self, result: StepResult, now: float) -> list[Output]:
        """Take in what the oldest flight brought; returns the news of its requests."""
        flight = self.flights.popleft()
        assert flight.plan.step_id == result.step_id, f"got step {result.step_id}, expected {flight.plan.step_id}"
        faults = dict(result.faults)
        tokens, bounds, logprobs = tuple(result.tokens.tolist()), result.cu_tokens.tolist(), result.logprobs
        block_size, caching = self._block_size, self._caching
        outputs: list[Output] = []
        for row, (sequence, ride, _, end, sample) in enumerate(flight.rows):
            if sample >= 0:
                sequence.num_pending -= 1
            if sequence.status is Status.FINISHED:
                continue
            if row in faults:
                outputs.append(self.roster.finish(sequence, FinishReason.ERROR, now, error=faults[row]))
                continue
            if ride == sequence.ride:
                table = sequence.table
                assert table is not None
                sequence.num_computed = end
                if self._windowed or (caching and end // block_size > table.num_published):
                    self.cache.publish(table, sequence.block_hashes, end)
            if sample >= 0:
                first, last = bounds[sample], bounds[sample + 1]
                wanted = logprobs[first:last] if logprobs else ()
                outputs.append(self._append(sequence, tokens[first:last], wanted, now))
        return outputs

    def rollback(self, plan: StepPlan, error: Exception | None = None, now: float = 0.0) -> list[Output]:
        """Take the newest flight back, as if it had never been scheduled.

        With an error its sequences are suspects: they ride again in halves until the culprit fails alone. Returns the
        last Output of a sequence that was alone already.
        """
        flight = self.flights.pop()
        assert flight.plan is plan, "steps are taken back newest first"
        self.roster.released = [*plan.released, *self.roster.released]
        for sequence, ride, start, _, sample in flight.rows:
            if sample >= 0:
                sequence.num_pending -= 1
            if sequence.status is Status.RUNNING and sequence.ride == ride:
                sequence.num_scheduled = start
                sequence.known = False
        if error is None:
            return []
        self.counters.failed_steps += 1
        alive = [row.sequence for row in flight.rows if row.sequence.ride == row.ride]
        alive = [sequence for sequence in alive if sequence.status is Status.RUNNING]
        if len(flight.rows) == 1:
            cause = error if isinstance(error, RequestFailed) else ForwardFailed(f"the model raised: {error}")
            return [self.roster.finish(sequence, FinishReason.ERROR, now, error=cause) for sequence in alive]
        middle = (len(alive) + 1) // 2
        self._suspects += [half for half in (alive[middle:], alive[:middle]) if half]
        return []

    def _append(
        self, sequence: Sequence, tokens: tuple[int, ...], logprobs: tuple[TokenLogprob | None, ...], now: float
    ) -> Output:
        """Take new tokens in, up to the one that ends the request."""
        token_ids, longest = sequence.token_ids, sequence.num_prompt + sequence.max_outputs
        if len(token_ids) == sequence.num_prompt:
            sequence.diary.note("first_token", now)
        reason = None
        for count, token in enumerate(tokens, start=1):
            token_ids.append(token)
            if token in sequence.stop_ids:
                reason = FinishReason.STOP
            elif len(token_ids) >= longest:
                reason = FinishReason.LENGTH
            if reason is not None:
                tokens, logprobs = tokens[:count], logprobs[:count]
                break
        self.counters.output_tokens += len(tokens)
        if sequence.status is Status.WAITING:
            self.roster.waiting_tokens += len(tokens)
        said = tuple(entry for entry in logprobs if entry is not None) if logprobs else ()
        if reason is not None:
            return self.roster.finish(sequence, reason, now, tokens=tokens, logprobs=said)
        if self._caching and len(token_ids) // self._block_size > len(sequence.block_hashes):
            sequence.name_blocks(self._block_size)
        return Output(sequence.request.request_id, tokens, said)

    def check(self) -> list[str]:
        """Prove the ledger of blocks, slots and counters; returns what is wrong, nothing when all is well."""
        return [*self.cache.check(), *self.roster.check()]

"""Scheduler: decides each step; a deterministic state machine that reads no clock and does no I/O.

    add ──► line ──board──► running ──finish──► gone        schedule(now) -> StepPlan     hands tokens out
              ▲               │                             commit(result, now)           takes results in
              └────preempt────┘                             rollback(plan, error, now)    takes a step back

The lists are roster.py, who rides in a step is decided in boarding.py, what is on its way lies in flight.py.
"""

from collections import Counter, deque
from collections.abc import Iterable
from collections.abc import Sequence as Items
from math import inf

import numpy as np

from chairlift.core.errors import (
    ChairliftError,
    DuplicateRequestId,
    ForwardFailed,
    QueueFull,
    RequestFailed,
    StructuredOutputFailed,
)
from chairlift.core.request import EngineOutput, FinishReason, GenerateRequest, TokenLogprob
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.kv.block_hash import root_hash
from chairlift.engine.kv.kv_cache_manager import KVCacheManager
from chairlift.engine.request_limits import RequestLimits, validate_request
from chairlift.engine.scheduler.deadlines import Deadlines
from chairlift.engine.scheduler.sequence_table import SequenceTable
from chairlift.engine.scheduler.step_builder import InFlightStep, StepBuilder
from chairlift.engine.scheduler.step_cost_model import StepCostModel, StepFeatures
from chairlift.engine.scheduler.step_scheduler import StepScheduler
from chairlift.engine.sequence import Sequence, SequenceStatus
from chairlift.engine.sequence_group import SequenceGroup, resumed_finish_reason
from chairlift.engine.step_plan import StepPlan, StepResult
from chairlift.engine.structured.grammar import Grammar


class Scheduler:
    """Everything that is decided about the requests of one engine. Not thread-safe; one loop owns it."""

    def __init__(self, config: SchedulerConfig, cache: KVCacheManager, limits: RequestLimits) -> None:
        self.config = config
        self.cache = cache
        self.limits = limits
        self.table = roster = SequenceTable(config, cache)
        self.waiting, self.running, self.sequences = roster.line, roster.running, roster.sequences
        self.sequence_groups = roster.families
        self.wait_clock, self.counters = roster.wait_clock, roster.counters
        self.in_flight_steps: deque[InFlightStep] = deque()
        self.step_times = StepCostModel()
        self._deadlines = Deadlines(self.step_times, config.max_prefill_chunk)
        self._boarding = StepScheduler(config, cache, roster, limits.lookahead, self.step_times, self._deadlines)
        self._suspects: list[list[Sequence]] = []
        self._last_commit = -inf
        self._arrivals = 0
        self._steps = 0
        self._block_size, self._caching = cache.config.block_size, cache.config.enable_prefix_caching
        self._windowed = any(window is not None for window in cache.config.windows)

    # -- intake ----------------------------------------------------------------------------------------------------

    def add_request(
        self, request: GenerateRequest, now: float, grammars: Items[Grammar] = (), waited: float = 0.0
    ) -> list[EngineOutput]:  # fmt: skip
        """Put a request in line; `grammars`, one a choice, say what its outputs have to be, and took `waited` seconds.

        Returns the Outputs of its choices that were over before they were resumed; its last one where all were.
        Raises InvalidRequest (or a kind of it) when it can never be served, DuplicateRequestId, QueueFull,
        DeadlineUnreachable.
        """
        validate_request(request, self.limits)
        if request.request_id in self.sequence_groups:
            raise DuplicateRequestId(request.request_id)
        if len(self.waiting) >= self.config.max_queue_size:
            raise QueueFull(len(self.waiting), self.config.max_queue_size)
        sequences, over = self._create_sequences(request, grammars, now - waited)
        if grammars:
            for sequence in sequences:
                sequence.timeline_recorder.record("compiled", now)
        if sequences and sequences[0].deadline is not None:
            first = sequences[0]
            hit = (
                self.cache.no_hit
                if first.needs_prompt_logprobs
                else self.cache.match(first.block_hashes, first.num_prompt_tokens)
            )
            error = None if hit.pending is not None else self._deadlines.rejection(first, hit.num_tokens, now)
            if error is not None:
                raise error
            for sequence in sequences:
                self._deadlines.watch(sequence)
        family = SequenceGroup(request, sequences, sum(len(request.resumed_tokens(index)) for index, _ in over))
        if sequences:
            self.table.add_group(family, now)
        outputs = [EngineOutput(request.request_id, finish_reason=reason, choice_index=index) for index, reason in over]
        if not sequences:
            outputs[-1] = outputs[-1]._replace(usage=family.usage())
        return outputs

    def _create_sequences(
        self, request: GenerateRequest, grammars: Items[Grammar], since: float
    ) -> tuple[list[Sequence], list[tuple[int, FinishReason]]]:
        """Make the sequences of a request's choices, and say which of them are over already, and why."""
        root = root_hash(self.cache.config.model_id, request.adapter, request.tenant, request.cache_salt)
        sequences: list[Sequence] = []
        over: list[tuple[int, FinishReason]] = []
        for index in range(request.params.num_choices):
            grammar = grammars[index] if grammars else None
            is_whole = grammar is not None and grammar.is_terminated
            reason = FinishReason.STOP if is_whole else resumed_finish_reason(request, index)
            if reason is not None:
                over.append((index, reason))
                continue
            sequence = Sequence(request, self._arrivals, root, since, index, grammar)
            self._arrivals += 1
            if self._caching:
                if sequences:  # the same prompt
                    sequence.block_hashes = sequences[0].block_hashes[: sequence.num_prompt_tokens // self._block_size]
                sequence.update_block_hashes(self._block_size)
            sequences.append(sequence)
        return sequences, over

    def abort(self, request_id: str, now: float, index: int | None = None) -> EngineOutput | None:
        """End a request, or one choice of it, wherever it is.

        Returns its last Output (of the request only if nothing else of it is open), None when it is not open.
        """
        family = self.sequence_groups.get(request_id)
        if family is None:
            return None
        sequence = next(iter(family.open.values())) if index is None else family.open.get(index)
        if sequence is None:
            return None
        return self.table.finish(sequence, FinishReason.ABORT, now, alone=index is not None)

    def expire(self, now: float) -> list[EngineOutput]:
        """End the requests whose time is up; returns their last Outputs, and those of the ones given up in a step."""
        ended, self.table.pending_outputs = self.table.pending_outputs, []
        for sequence, error in self._deadlines.expired(now):
            ended.append(self.table.finish(sequence, FinishReason.ERROR, now, error=error))
        return ended

    @property
    def waiting_tokens(self) -> int:
        """Tokens in line, still to be computed."""
        return self.table.waiting_tokens

    @property
    def unused_kv_tokens(self) -> int:
        """Token slots that riding sequences hold and that no confirmed token fills yet."""
        tables = ((sequence.table, sequence.num_computed_tokens) for sequence in self.running.values())
        return len(self.cache.layouts) * sum(table.capacity - computed for table, computed in tables if table)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing in line, nothing riding and nothing in flight."""
        return not (self.sequence_groups or self.in_flight_steps or self.table.pending_outputs)

    # -- one step --------------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan | None:
        """Decide the next step; None when nothing can ride before a launched step is committed, or at all."""
        assert len(self.in_flight_steps) < self.config.max_in_flight_steps, "more launches than the overlap allows"
        if self._suspects and self.in_flight_steps:
            return None
        draft = StepBuilder(
            self.config.max_batch_tokens, self.config.prefill_budget, num_in_flight=len(self.in_flight_steps),
            has_grammars=self.table.num_structured > 0,
        )  # fmt: skip
        while self._suspects and not draft.num_rows:
            self._boarding.schedule_suspects(draft, self._suspects.pop(), now)
        if not draft.num_rows:
            self._boarding.schedule_step(draft, now)
        if not draft.num_rows:
            return None
        flight = draft.build(self._steps, tuple(self.table.released_slots), now)
        self.table.released_slots.clear()
        self._steps += 1
        self.in_flight_steps.append(flight)
        self.counters.record_step(flight, len(self.in_flight_steps))
        return flight.plan

    def commit(self, result: StepResult, now: float) -> list[EngineOutput]:
        """Take in what the oldest flight brought; returns the news of its requests."""
        flight = self.in_flight_steps.popleft()
        assert flight.plan.step_id == result.step_id, f"got step {result.step_id}, expected {flight.plan.step_id}"
        self._record_step_time(flight, now)
        faults = dict(result.row_errors)
        if self.waiting.tracks_service:
            self._charge_tenants(flight, result)
        outputs: list[EngineOutput] = []
        slow: Iterable[int] = range(len(flight.ends))
        scores = dict(result.prompt_logprobs)
        drawn, bounds = result.tokens.tolist(), result.cu_tokens.tolist()
        if not (faults or scores or result.logprobs) and len(drawn) == len(flight.plan.sample_rows):
            slow = self._commit_plain_decodes(flight, drawn[: flight.num_decodes], outputs)
        ends, rides, samples = flight.ends, flight.epochs, flight.sample_indices
        for row in slow:
            sequence, sample = flight.sequences[row], samples[row]
            if sample >= 0:
                sequence.num_pending_samples -= 1
            if sequence.status is SequenceStatus.FINISHED:
                continue
            if row in faults:
                outputs.append(self.table.finish(sequence, FinishReason.ERROR, now, error=faults[row]))
                continue
            if rides[row] == sequence.epoch:
                self._advance_computed(sequence, ends[row])
            scored = scores.get(row, ())
            sequence.num_prompt_logprobs_done += len(scored)
            if sample >= 0:
                first, last = bounds[sample], bounds[sample + 1]
                wanted = result.logprobs[first:last] if result.logprobs else ()
                tokens = tuple(drawn[first:last])
                outputs.append(self._append_tokens(sequence, tokens, wanted, scored, now))
            elif scored:
                outputs.append(
                    EngineOutput(sequence.request_id, choice_index=sequence.choice_index, prompt_logprobs=scored)
                )
        return outputs

    def _commit_plain_decodes(self, flight: InFlightStep, tokens: list[int], outputs: list[EngineOutput]) -> list[int]:
        """Take in one plain token for each decode row; returns the rows that need more than that, all chunks included.

        This is what nearly every row of nearly every step is, so it is the one loop here that is written for speed.
        Whoever left meanwhile, ends, or fills a block has reached its milestone.
        """
        later: list[int] = []
        new = tuple.__new__
        for row, (sequence, end, token) in enumerate(zip(flight.sequences, flight.ends, tokens, strict=False)):
            if end >= sequence.fast_path_end or token in sequence.stop_ids:
                if token in sequence.stop_ids or self._needs_slow_path(sequence, flight.epochs[row], end):
                    later.append(row)
                    continue
                self._advance_computed(sequence, end)
            if (grammar := sequence.grammar) is not None and not grammar.try_advance(token):
                later.append(row)
                continue
            sequence.num_pending_samples -= 1
            sequence.num_computed_tokens = end
            sequence.token_ids.append(token)
            outputs.append(
                new(
                    EngineOutput, (sequence.request_id, (token,), (), None, None, None, None, sequence.choice_index, ())
                )
            )
        self.counters.output_tokens += len(outputs)
        return [*later, *range(flight.num_decodes, len(flight.ends))]

    @staticmethod
    def _needs_slow_path(sequence: Sequence, ride: int, num_computed: int) -> bool:
        """Whether it left meanwhile, ends with its next token, or has none yet."""
        gone = sequence.status is not SequenceStatus.RUNNING or sequence.epoch != ride
        ends = num_computed + 1 >= sequence.max_length
        return gone or ends or not sequence.has_first_token

    def _advance_computed(self, sequence: Sequence, num_computed: int) -> None:
        """What was scheduled up to there is computed: its full blocks can be found by others."""
        table = sequence.table
        assert table is not None
        sequence.num_computed_tokens = num_computed
        full = num_computed // self._block_size
        if self._caching and full > len(sequence.block_hashes):
            sequence.update_block_hashes(self._block_size)
        if self._windowed or (self._caching and full > table.num_published):
            self.cache.publish(table, sequence.block_hashes, num_computed)
        # The next block is full, or one lies behind a window; and the one before the last token comes with it.
        if sequence.has_first_token:
            sequence.fast_path_end = min(self.cache.next_publish_at(num_computed), sequence.max_length - 1)

    def _record_step_time(self, flight: InFlightStep, now: float) -> None:
        """Learn how long the step took; with two in flight it began when the one before it was committed."""
        seconds = now - max(flight.scheduled_at, self._last_commit)
        self._last_commit = now
        if seconds > 0:
            self.step_times.update(StepFeatures.of(flight.plan, flight.num_decodes), seconds * 1e3)

    def _charge_tenants(self, flight: InFlightStep, result: StepResult) -> None:
        """Tell the line which tenant was given how many tokens."""
        counts, gone = np.diff(result.cu_tokens).tolist(), SequenceStatus.FINISHED
        drawn = [
            (sequence.request.tenant, counts[sample])
            for sequence, sample in zip(flight.sequences, flight.sample_indices, strict=True)
            if sample >= 0 and sequence.status is not gone
        ]
        for (tenant, count), times in Counter(drawn).items():
            self.waiting.record_service(tenant, count * times)

    def rollback(self, plan: StepPlan, error: Exception | None = None, now: float = 0.0) -> list[EngineOutput]:
        """Take the newest flight back, as if it had never been scheduled.

        With an error its sequences are suspects: they ride again in halves until the culprit fails alone. Returns the
        last Output of a sequence that was alone already.
        """
        flight = self.in_flight_steps.pop()
        assert flight.plan is plan, "steps are taken back newest first"
        self.table.released_slots = [*plan.released_slots, *self.table.released_slots]
        for sequence, ride, start, _, sample in (rows := flight.rows):
            if sample >= 0:
                sequence.num_pending_samples -= 1
            if sequence.status is SequenceStatus.RUNNING and sequence.epoch == ride:
                sequence.num_scheduled_tokens = start
                sequence.is_in_runner = False
                if sequence in flight.forked:  # the block that it was to begin with was not copied
                    size = self._block_size
                    sequence.num_scheduled_tokens = sequence.num_computed_tokens = start // size * size
        if error is None:
            return []
        self.counters.failed_steps += 1
        alive = [row.sequence for row in rows if row.sequence.epoch == row.ride]
        alive = [sequence for sequence in alive if sequence.status is SequenceStatus.RUNNING]
        if len(rows) == 1:
            cause = error if isinstance(error, RequestFailed) else ForwardFailed(f"the model raised: {error}")
            return [self.table.finish(sequence, FinishReason.ERROR, now, error=cause) for sequence in alive]
        middle = (len(alive) + 1) // 2
        self._suspects += [half for half in (alive[middle:], alive[:middle]) if half]
        return []

    def _append_tokens(
        self, sequence: Sequence, tokens: tuple[int, ...], logprobs: tuple[TokenLogprob | None, ...],
        scored: tuple[TokenLogprob, ...], now: float,
    ) -> EngineOutput:  # fmt: skip
        """Take new tokens in, up to the one that ends the choice."""
        if not sequence.has_first_token:
            sequence.has_first_token = True
            sequence.timeline_recorder.record("first_token", now)
            self.table.enqueue_deferred(self.sequence_groups[sequence.request_id], now)
        reason: FinishReason | None = None
        error: ChairliftError | None = None
        for place, token in enumerate(tokens):
            try:
                reason = self._append_token(sequence, token)
            except StructuredOutputFailed as failure:
                reason, error = FinishReason.ERROR, failure
            if reason is not None:
                taken = place + (error is None)
                tokens, logprobs = tokens[:taken], logprobs[:taken]
                break
        self.counters.output_tokens += len(tokens)
        if sequence.status is SequenceStatus.WAITING:
            self.table.waiting_tokens += len(tokens)
        said = tuple(entry for entry in logprobs if entry is not None) if logprobs else ()
        if reason is not None:
            return self.table.finish(
                sequence, reason, now, error=error, tokens=tokens, logprobs=said, prompt_logprobs=scored
            )
        if self._caching and sequence.status is SequenceStatus.WAITING:
            sequence.update_block_hashes(self._block_size)
        return EngineOutput(
            sequence.request_id, tokens, said, choice_index=sequence.choice_index, prompt_logprobs=scored
        )

    @staticmethod
    def _append_token(sequence: Sequence, token: int) -> FinishReason | None:
        """Append one token; returns why the choice ends with it, if it does. Raises StructuredOutputFailed."""
        grammar = sequence.grammar
        if grammar is not None:
            grammar.check()
        if token in sequence.stop_ids:
            sequence.token_ids.append(token)
            return FinishReason.STOP
        if grammar is not None:
            grammar.advance(token)
        sequence.token_ids.append(token)
        if grammar is not None and grammar.is_terminated:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(sequence.token_ids) >= sequence.max_length else None

    def check_integrity(self) -> list[str]:
        """Prove the ledger of blocks, slots and counters; returns what is wrong, nothing when all is well."""
        return [*self.cache.check_integrity(), *self.table.check()]

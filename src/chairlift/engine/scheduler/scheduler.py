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
    StructureFailed,
)
from chairlift.core.request import FinishReason, GenerateRequest, Output, TokenLogprob
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.kv.block_hash import root_hash
from chairlift.engine.kv.kv_cache_manager import KVCache
from chairlift.engine.request_limits import Limits, check
from chairlift.engine.scheduler.deadlines import Deadlines
from chairlift.engine.scheduler.sequence_table import Roster
from chairlift.engine.scheduler.step_builder import Draft, Flight
from chairlift.engine.scheduler.step_cost_model import StepShape, StepTimes
from chairlift.engine.scheduler.step_scheduler import Boarding
from chairlift.engine.sequence import Sequence, Status
from chairlift.engine.sequence_group import Family, resumed_end
from chairlift.engine.step_plan import StepPlan, StepResult
from chairlift.engine.structured.grammar import Grammar


class Scheduler:
    """Everything that is decided about the requests of one engine. Not thread-safe; one loop owns it."""

    def __init__(self, config: SchedulerConfig, cache: KVCache, limits: Limits) -> None:
        self.config = config
        self.cache = cache
        self.limits = limits
        self.roster = roster = Roster(config, cache)
        self.line, self.running, self.sequences = roster.line, roster.running, roster.sequences
        self.families = roster.families
        self.wait_clock, self.counters = roster.wait_clock, roster.counters
        self.flights: deque[Flight] = deque()
        self.step_times = StepTimes()
        self._deadlines = Deadlines(self.step_times, config.max_chunk)
        self._boarding = Boarding(config, cache, roster, limits.lookahead, self.step_times, self._deadlines)
        self._suspects: list[list[Sequence]] = []
        self._last_commit = -inf
        self._arrivals = 0
        self._steps = 0
        self._block_size, self._caching = cache.config.block_size, cache.config.enable_prefix_caching
        self._windowed = any(window is not None for window in cache.config.windows)

    # -- intake ----------------------------------------------------------------------------------------------------

    def add(
        self, request: GenerateRequest, now: float, grammars: Items[Grammar] = (), waited: float = 0.0
    ) -> list[Output]:  # fmt: skip
        """Put a request in line; `grammars`, one a choice, say what its outputs have to be, and took `waited` seconds.

        Returns the Outputs of its choices that were over before they were resumed; its last one where all were.
        Raises InvalidRequest (or a kind of it) when it can never be served, DuplicateRequestId, QueueFull,
        DeadlineUnreachable.
        """
        check(request, self.limits)
        if request.request_id in self.families:
            raise DuplicateRequestId(request.request_id)
        if len(self.line) >= self.config.max_queue_size:
            raise QueueFull(len(self.line), self.config.max_queue_size)
        sequences, over = self._choices(request, grammars, now - waited)
        if grammars:
            for sequence in sequences:
                sequence.diary.note("compiled", now)
        if sequences and sequences[0].deadline is not None:
            first = sequences[0]
            hit = self.cache.nothing if first.wants_scores else self.cache.match(first.block_hashes, first.num_prompt)
            error = None if hit.pending is not None else self._deadlines.refusal(first, hit.num_tokens, now)
            if error is not None:
                raise error
            for sequence in sequences:
                self._deadlines.watch(sequence)
        family = Family(request, sequences, sum(len(request.resumed(index)) for index, _ in over))
        if sequences:
            self.roster.open(family, now)
        outputs = [Output(request.request_id, finish_reason=reason, choice=index) for index, reason in over]
        if not sequences:
            outputs[-1] = outputs[-1]._replace(usage=family.usage())
        return outputs

    def _choices(
        self, request: GenerateRequest, grammars: Items[Grammar], since: float
    ) -> tuple[list[Sequence], list[tuple[int, FinishReason]]]:
        """Make the sequences of a request's choices, and say which of them are over already, and why."""
        root = root_hash(self.cache.config.model_id, request.adapter, request.tenant, request.cache_salt)
        sequences: list[Sequence] = []
        over: list[tuple[int, FinishReason]] = []
        for index in range(request.params.num_choices):
            grammar = grammars[index] if grammars else None
            is_whole = grammar is not None and grammar.is_over
            reason = FinishReason.STOP if is_whole else resumed_end(request, index)
            if reason is not None:
                over.append((index, reason))
                continue
            sequence = Sequence(request, self._arrivals, root, since, index, grammar)
            self._arrivals += 1
            if self._caching:
                if sequences:  # the same prompt
                    sequence.block_hashes = sequences[0].block_hashes[: sequence.num_prompt // self._block_size]
                sequence.name_blocks(self._block_size)
            sequences.append(sequence)
        return sequences, over

    def abort(self, request_id: str, now: float, index: int | None = None) -> Output | None:
        """End a request, or one choice of it, wherever it is.

        Returns its last Output (of the request only if nothing else of it is open), None when it is not open.
        """
        family = self.families.get(request_id)
        if family is None:
            return None
        sequence = next(iter(family.open.values())) if index is None else family.open.get(index)
        if sequence is None:
            return None
        return self.roster.finish(sequence, FinishReason.ABORT, now, alone=index is not None)

    def expire(self, now: float) -> list[Output]:
        """End the requests whose time is up; returns their last Outputs, and those of the ones given up in a step."""
        ended, self.roster.ended = self.roster.ended, []
        for sequence, error in self._deadlines.up(now):
            ended.append(self.roster.finish(sequence, FinishReason.ERROR, now, error=error))
        return ended

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
        return not (self.families or self.flights or self.roster.ended)

    # -- one step --------------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan | None:
        """Decide the next step; None when nothing can ride before a launched step is committed, or at all."""
        assert len(self.flights) < self.config.depth, "more launches than the overlap allows"
        if self._suspects and self.flights:
            return None
        draft = Draft(
            self.config.max_batch_tokens, self.config.prefill_budget, in_flight=len(self.flights),
            has_grammars=self.roster.num_grammars > 0,
        )  # fmt: skip
        while self._suspects and not draft.num_rows:
            self._boarding.ride_again(draft, self._suspects.pop(), now)
        if not draft.num_rows:
            self._boarding.fill(draft, now)
        if not draft.num_rows:
            return None
        flight = draft.launch(self._steps, tuple(self.roster.released), now)
        self.roster.released.clear()
        self._steps += 1
        self.flights.append(flight)
        self.counters.launched(flight, len(self.flights))
        return flight.plan

    def commit(self, result: StepResult, now: float) -> list[Output]:
        """Take in what the oldest flight brought; returns the news of its requests."""
        flight = self.flights.popleft()
        assert flight.plan.step_id == result.step_id, f"got step {result.step_id}, expected {flight.plan.step_id}"
        self._time(flight, now)
        faults = dict(result.faults)
        if self.line.counts_service:
            self._count_service(flight, result)
        outputs: list[Output] = []
        slow: Iterable[int] = range(len(flight.ends))
        scores = dict(result.prompt_logprobs)
        drawn, bounds = result.tokens.tolist(), result.cu_tokens.tolist()
        if not (faults or scores or result.logprobs) and len(drawn) == len(flight.plan.sample_rows):
            slow = self._commit_decodes(flight, drawn[: flight.num_decodes], outputs)
        ends, rides, samples = flight.ends, flight.rides, flight.samples
        for row in slow:
            sequence, sample = flight.sequences[row], samples[row]
            if sample >= 0:
                sequence.num_pending -= 1
            if sequence.status is Status.FINISHED:
                continue
            if row in faults:
                outputs.append(self.roster.finish(sequence, FinishReason.ERROR, now, error=faults[row]))
                continue
            if rides[row] == sequence.ride:
                self._confirm(sequence, ends[row])
            scored = scores.get(row, ())
            sequence.num_scored += len(scored)
            if sample >= 0:
                first, last = bounds[sample], bounds[sample + 1]
                wanted = result.logprobs[first:last] if result.logprobs else ()
                tokens = tuple(drawn[first:last])
                outputs.append(self._append(sequence, tokens, wanted, scored, now))
            elif scored:
                outputs.append(Output(sequence.name, choice=sequence.index, prompt_logprobs=scored))
        return outputs

    def _commit_decodes(self, flight: Flight, tokens: list[int], outputs: list[Output]) -> list[int]:
        """Take in one plain token for each decode row; returns the rows that need more than that, all chunks included.

        This is what nearly every row of nearly every step is, so it is the one loop here that is written for speed.
        Whoever left meanwhile, ends, or fills a block has reached its milestone.
        """
        later: list[int] = []
        new = tuple.__new__
        for row, (sequence, end, token) in enumerate(zip(flight.sequences, flight.ends, tokens, strict=False)):
            if end >= sequence.milestone or token in sequence.stop_ids:
                if token in sequence.stop_ids or self._is_special(sequence, flight.rides[row], end):
                    later.append(row)
                    continue
                self._confirm(sequence, end)
            if (grammar := sequence.grammar) is not None and not grammar.goes_on(token):
                later.append(row)
                continue
            sequence.num_pending -= 1
            sequence.num_computed = end
            sequence.token_ids.append(token)
            outputs.append(new(Output, (sequence.name, (token,), (), None, None, None, None, sequence.index, ())))
        self.counters.output_tokens += len(outputs)
        return [*later, *range(flight.num_decodes, len(flight.ends))]

    @staticmethod
    def _is_special(sequence: Sequence, ride: int, num_computed: int) -> bool:
        """Whether it left meanwhile, ends with its next token, or has none yet."""
        gone = sequence.status is not Status.RUNNING or sequence.ride != ride
        ends = num_computed + 1 >= sequence.longest
        return gone or ends or not sequence.has_spoken

    def _confirm(self, sequence: Sequence, num_computed: int) -> None:
        """What was scheduled up to there is computed: its full blocks can be found by others."""
        table = sequence.table
        assert table is not None
        sequence.num_computed = num_computed
        full = num_computed // self._block_size
        if self._caching and full > len(sequence.block_hashes):
            sequence.name_blocks(self._block_size)
        if self._windowed or (self._caching and full > table.num_published):
            self.cache.publish(table, sequence.block_hashes, num_computed)
        # The next block is full, or one lies behind a window; and the one before the last token comes with it.
        if sequence.has_spoken:
            sequence.milestone = min(self.cache.next_change(num_computed), sequence.longest - 1)

    def _time(self, flight: Flight, now: float) -> None:
        """Learn how long the step took; with two in flight it began when the one before it was committed."""
        seconds = now - max(flight.launched_at, self._last_commit)
        self._last_commit = now
        if seconds > 0:
            self.step_times.learn(StepShape.of(flight.plan, flight.num_decodes), seconds * 1e3)

    def _count_service(self, flight: Flight, result: StepResult) -> None:
        """Tell the line which tenant was given how many tokens."""
        counts, gone = np.diff(result.cu_tokens).tolist(), Status.FINISHED
        drawn = [
            (sequence.request.tenant, counts[sample])
            for sequence, sample in zip(flight.sequences, flight.samples, strict=True)
            if sample >= 0 and sequence.status is not gone
        ]
        for (tenant, count), times in Counter(drawn).items():
            self.line.served(tenant, count * times)

    def rollback(self, plan: StepPlan, error: Exception | None = None, now: float = 0.0) -> list[Output]:
        """Take the newest flight back, as if it had never been scheduled.

        With an error its sequences are suspects: they ride again in halves until the culprit fails alone. Returns the
        last Output of a sequence that was alone already.
        """
        flight = self.flights.pop()
        assert flight.plan is plan, "steps are taken back newest first"
        self.roster.released = [*plan.released, *self.roster.released]
        for sequence, ride, start, _, sample in (rows := flight.rows):
            if sample >= 0:
                sequence.num_pending -= 1
            if sequence.status is Status.RUNNING and sequence.ride == ride:
                sequence.num_scheduled = start
                sequence.known = False
                if sequence in flight.forked:  # the block that it was to begin with was not copied
                    size = self._block_size
                    sequence.num_scheduled = sequence.num_computed = start // size * size
        if error is None:
            return []
        self.counters.failed_steps += 1
        alive = [row.sequence for row in rows if row.sequence.ride == row.ride]
        alive = [sequence for sequence in alive if sequence.status is Status.RUNNING]
        if len(rows) == 1:
            cause = error if isinstance(error, RequestFailed) else ForwardFailed(f"the model raised: {error}")
            return [self.roster.finish(sequence, FinishReason.ERROR, now, error=cause) for sequence in alive]
        middle = (len(alive) + 1) // 2
        self._suspects += [half for half in (alive[middle:], alive[:middle]) if half]
        return []

    def _append(
        self, sequence: Sequence, tokens: tuple[int, ...], logprobs: tuple[TokenLogprob | None, ...],
        scored: tuple[TokenLogprob, ...], now: float,
    ) -> Output:  # fmt: skip
        """Take new tokens in, up to the one that ends the choice."""
        if not sequence.has_spoken:
            sequence.has_spoken = True
            sequence.diary.note("first_token", now)
            self.roster.call_held(self.families[sequence.name], now)
        reason: FinishReason | None = None
        error: ChairliftError | None = None
        for place, token in enumerate(tokens):
            try:
                reason = self._taken(sequence, token)
            except StructureFailed as failure:
                reason, error = FinishReason.ERROR, failure
            if reason is not None:
                taken = place + (error is None)
                tokens, logprobs = tokens[:taken], logprobs[:taken]
                break
        self.counters.output_tokens += len(tokens)
        if sequence.status is Status.WAITING:
            self.roster.waiting_tokens += len(tokens)
        said = tuple(entry for entry in logprobs if entry is not None) if logprobs else ()
        if reason is not None:
            return self.roster.finish(
                sequence, reason, now, error=error, tokens=tokens, logprobs=said, prompt_logprobs=scored
            )
        if self._caching and sequence.status is Status.WAITING:
            sequence.name_blocks(self._block_size)
        return Output(sequence.name, tokens, said, choice=sequence.index, prompt_logprobs=scored)

    @staticmethod
    def _taken(sequence: Sequence, token: int) -> FinishReason | None:
        """Append one token; returns why the choice ends with it, if it does. Raises StructureFailed."""
        grammar = sequence.grammar
        if grammar is not None:
            grammar.check()
        if token in sequence.stop_ids:
            sequence.token_ids.append(token)
            return FinishReason.STOP
        if grammar is not None:
            grammar.advance(token)
        sequence.token_ids.append(token)
        if grammar is not None and grammar.is_over:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(sequence.token_ids) >= sequence.longest else None

    def check(self) -> list[str]:
        """Prove the ledger of blocks, slots and counters; returns what is wrong, nothing when all is well."""
        return [*self.cache.check(), *self.roster.check()]

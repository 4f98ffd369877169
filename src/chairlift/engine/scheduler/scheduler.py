"""Scheduler: decides each step; a deterministic state machine that reads no clock and does no I/O.

    add ──► waiting ──start──► running ──finish──► finished     schedule(now) -> StepPlan     gives tokens out
               ▲                  │                             commit(result, now)           applies a result
               └─────preempt──────┘                             rollback(plan, error, now)    undoes a step

SequenceTable holds the lists, StepScheduler fills a step, InFlightStep is a launched one.
"""

from collections import Counter, deque
from collections.abc import Iterable
from collections.abc import Sequence as Items
from math import inf

import numpy as np

from chairlift.core.block_hash import root_hash
from chairlift.core.engine_output import EngineOutput, FinishReason, TokenLogprob
from chairlift.core.errors import (
    ChairliftError,
    DuplicateRequestId,
    ForwardFailed,
    QueueFull,
    RequestFailed,
    StructuredOutputFailed,
)
from chairlift.core.request import GenerateRequest
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.drafters.base import Drafter
from chairlift.engine.kv.kv_cache_manager import KVCacheManager
from chairlift.engine.request_limits import RequestLimits
from chairlift.engine.request_validation import ValidatedRequest
from chairlift.engine.scheduler.deadlines import Deadlines
from chairlift.engine.scheduler.draft_planner import DraftPlanner
from chairlift.engine.scheduler.in_flight_step import InFlightStep
from chairlift.engine.scheduler.sequence_table import SequenceTable
from chairlift.engine.scheduler.state_checkpoint_planner import StateCheckpointPlanner
from chairlift.engine.scheduler.step_builder import StepBuilder
from chairlift.engine.scheduler.step_cost_model import StepCostModel, StepFeatures
from chairlift.engine.scheduler.step_scheduler import StepScheduler
from chairlift.engine.sequence import Sequence, SequenceStatus
from chairlift.engine.sequence_group import SequenceGroup, resumed_finish_reason
from chairlift.engine.step_plan import StepPlan
from chairlift.engine.step_result import StepResult
from chairlift.engine.structured.grammar_matcher import GrammarMatcher


class Scheduler:
    """Decides everything about the requests of one engine. Not thread-safe; one loop owns it."""

    def __init__(self, config: SchedulerConfig, cache: KVCacheManager, limits: RequestLimits) -> None:
        self.config = config
        self.cache = cache
        self.limits = limits
        self.table = sequence_table = SequenceTable(config, cache)
        self.waiting, self.running, self.sequences = (
            sequence_table.waiting,
            sequence_table.running,
            sequence_table.sequences,
        )
        self.sequence_groups = sequence_table.groups
        self.wait_clock, self.counters = sequence_table.wait_clock, sequence_table.counters
        self.in_flight_steps: deque[InFlightStep] = deque()
        self.step_times = StepCostModel()
        self._deadlines = Deadlines(self.step_times, config.max_prefill_chunk)
        self._step_scheduler = StepScheduler(
            config, cache, sequence_table, limits.lookahead, self.step_times, self._deadlines
        )
        self._draft_planner: DraftPlanner | None = None
        self._suspects: list[list[Sequence]] = []
        self._checkpoints = (
            StateCheckpointPlanner(cache, self.running, min(limits.max_model_len, limits.max_cached_tokens))
            if cache.config.shares_states
            else None
        )
        self._has_state = cache.config.has_state
        self._has_lost_states = False  # of running sequences, in the runner
        self._retries: dict[Sequence, int] = {}  # positions at which steps failed, and which are not computed yet
        self._has_failed = False  # the newest step; its sequences are not added again while samples are pending
        self._last_commit = -inf
        self._arrivals = 0
        self._steps = 0
        self._block_size, self._caching = cache.config.block_size, cache.config.enable_prefix_caching
        self._windowed = any(window is not None for window in cache.config.windows)

    def use_drafters(self, drafters: Items[Drafter], max_drafts: int) -> None:
        """Let drafters guess at most max_drafts tokens of each sequence in a step, from the next step on."""
        self._draft_planner = self._step_scheduler.draft_planner = DraftPlanner(
            self.config,
            self.cache,
            self.table,
            drafters,
            times=self.step_times,
            vocab_size=self.limits.vocab_size,
            max_drafts=max_drafts,
        )
        self.table.on_removed = self._draft_planner.forget

    # -- intake ----------------------------------------------------------------------------------------------------

    def add_request(
        self, validated: ValidatedRequest, now: float, grammars: Items[GrammarMatcher] = (), waited: float = 0.0
    ) -> list[EngineOutput]:  # fmt: skip
        """Queue a request, with a grammar for each choice or none; compiling them took `waited` seconds.

        Returns the outputs of choices that had finished before they were resumed, with the usage if all had.
        Raises DuplicateRequestId, QueueFull, DeadlineUnreachable and TimeoutTooShort.
        """
        assert validated.limits == self.limits, "a request was validated against the limits of another engine"
        request = validated.request
        if request.request_id in self.sequence_groups:
            raise DuplicateRequestId(request.request_id)
        if len(self.waiting) >= self.config.max_queue_size:
            raise QueueFull(len(self.waiting), self.config.max_queue_size)
        sequences, ended = self._create_sequences(request, grammars, now - waited)
        if grammars:
            for sequence in sequences:
                sequence.timeline_recorder.record("grammar_compiled", now)
        if sequences and sequences[0].deadline is not None:
            first = sequences[0]
            hit = (
                self.cache.no_hit
                if first.needs_whole_prompt
                else self.cache.match(first.block_hashes, first.num_prompt_tokens)
            )
            # A pending prefix may spare nearly the whole prompt, so the time cannot be bounded from below yet.
            error = None if hit.pending is not None else self._deadlines.rejection(first, hit.num_tokens, now)
            if error is not None:
                raise error
            for sequence in sequences:
                self._deadlines.watch(sequence)
        group = SequenceGroup(request, sequences, sum(len(request.resumed_tokens(index)) for index, _ in ended))
        if sequences:
            self.table.add_group(group, now)
        outputs = [
            EngineOutput(request.request_id, finish_reason=reason, choice_index=index) for index, reason in ended
        ]
        if not sequences:
            outputs[-1] = outputs[-1]._replace(usage=group.usage())
        return outputs

    def _create_sequences(
        self, request: GenerateRequest, grammars: Items[GrammarMatcher], since: float
    ) -> tuple[list[Sequence], list[tuple[int, FinishReason]]]:
        """Create the sequences of the open choices; also return the finished choices with reasons."""
        root = root_hash(self.cache.config.model_id, request.adapter.digest, request.tenant, request.cache_salt)
        sequences: list[Sequence] = []
        ended: list[tuple[int, FinishReason]] = []
        for index in range(request.params.num_choices):
            grammar = grammars[index] if grammars else None
            is_complete = grammar is not None and grammar.is_terminated
            reason = FinishReason.STOP if is_complete else resumed_finish_reason(request, index)
            if reason is not None:
                ended.append((index, reason))
                continue
            sequence = Sequence(request, self._arrivals, root, since, index, grammar)
            self._arrivals += 1
            if self._caching:
                if sequences:  # all choices share the prompt
                    sequence.block_hashes = sequences[0].block_hashes[: sequence.num_prompt_tokens // self._block_size]
                sequence.update_block_hashes(self._block_size)
            if self._checkpoints is not None:
                sequence.checkpoint_positions = self._checkpoints.positions(request)
            sequences.append(sequence)
        return sequences, ended

    def abort(self, request_id: str, now: float, index: int | None = None) -> EngineOutput | None:
        """Abort a request, or one choice of it, in any state.

        Returns its last output (of the request only if no other choice is open); None when it is not open.
        """
        group = self.sequence_groups.get(request_id)
        if group is None:
            return None
        sequence = next(iter(group.open.values())) if index is None else group.open.get(index)
        if sequence is None:
            return None
        # A choice that a stop string ends is aborted.
        if index is not None and self._draft_planner is not None:
            self._draft_planner.learn(sequence)
        return self.table.finish(sequence, FinishReason.ABORT, now, alone=index is not None)

    def expire(self, now: float) -> list[EngineOutput]:
        """Fail requests past their deadline; return their final outputs and those of failed steps."""
        ended, self.table.pending_outputs = self.table.pending_outputs, []
        for sequence, error in self._deadlines.expired(now):
            ended.append(self.table.finish(sequence, FinishReason.ERROR, now, error=error))
        return ended

    @property
    def waiting_tokens(self) -> int:
        """Tokens of waiting sequences, still to be computed."""
        return self.table.waiting_tokens

    @property
    def unused_kv_tokens(self) -> int:
        """KV token slots that running sequences hold without a confirmed token."""
        tables = ((sequence.table, sequence.num_computed_tokens) for sequence in self.running.values())
        return len(self.cache.layouts) * sum(table.capacity - computed for table, computed in tables if table)

    @property
    def is_idle(self) -> bool:
        """Whether no request is open, no step is in flight and no output is pending."""
        return not (self.sequence_groups or self.in_flight_steps or self.table.pending_outputs)

    # -- one step --------------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan | None:
        """Decide the next step; None when no sequence can run, or not before a launched step is committed."""
        assert len(self.in_flight_steps) < self.config.max_in_flight_steps, (
            "more steps in flight than the overlap allows"
        )
        # Suspects run alone. After a failure the samples that are still in flight are committed first.
        if (self._suspects or self._has_failed or self._has_lost_states) and self.in_flight_steps:
            return None
        self._has_failed = False
        if self._has_lost_states:
            self._restart_lost()
        batch_tokens = self.table.batch_token_limit
        builder = StepBuilder(
            batch_tokens, min(batch_tokens, self.config.prefill_budget), num_in_flight=len(self.in_flight_steps),
            has_grammars=self.table.num_structured > 0, checkpoints=self._checkpoints,
        )  # fmt: skip
        # All sequences of a half may have ended or been preempted meanwhile.
        while self._suspects and not builder.num_rows:
            self._schedule_suspects(builder, self._suspects.pop(), now)
        if not builder.num_rows:
            self._step_scheduler.schedule_step(builder, now)
        if not builder.num_rows:
            return None
        step = builder.build(self._steps, tuple(self.table.released_slots), now)
        # Only a plan that exists releases them; rollback() takes them back.
        self.table.released_slots.clear()
        self._steps += 1
        self.in_flight_steps.append(step)
        self.counters.record_step(step, len(self.in_flight_steps))
        return step.plan

    def _schedule_suspects(self, builder: StepBuilder, half: list[Sequence], now: float) -> None:
        """Give tokens to a half of a failed step's sequences.

        With a state they have begun again before the tokens at which the step failed: they stay suspects until each of
        them has computed these. Otherwise a step could fail at the same token for ever.
        """
        if self._has_state:
            half = [sequence for sequence in half if sequence in self._retries]
        self._step_scheduler.schedule_suspects(builder, half, now)
        if self._has_state and builder.num_rows:
            self._suspects.append(half)

    def _record_retries(self, step: InFlightStep) -> None:
        """Forget the retries of sequences that have computed again what failed, or do not run any more."""
        for sequence, end in zip(step.sequences, step.ends, strict=True):
            if end >= self._retries.get(sequence, end + 1):
                del self._retries[sequence]
        running = SequenceStatus.RUNNING
        self._retries = {each: end for each, end in self._retries.items() if each.status is running}

    def _restart_lost(self) -> None:
        """Let the running sequences of steps that were rolled back begin again: their slots may have any state."""
        self._has_lost_states = False
        for sequence in self.running.values():
            if not sequence.is_in_runner:
                self.table.restart(sequence)

    def commit(self, result: StepResult, now: float) -> list[EngineOutput]:
        """Apply the result of the oldest in-flight step; returns the new outputs."""
        step = self.in_flight_steps.popleft()
        assert step.plan.step_id == result.step_id, f"got step {result.step_id}, expected {step.plan.step_id}"
        self._record_success(step, now)
        row_errors = dict(result.row_errors)
        if self._checkpoints is not None and (step.state_saves or step.state_loads):
            self._checkpoints.commit(step, row_errors)
        if self.waiting.tracks_service:
            self._charge_tenants(step, result)
        outputs: list[EngineOutput] = []
        slow_rows: Iterable[int] = range(len(step.ends))
        row_logprobs, pooled = dict(result.prompt_logprobs), dict(result.pooled)
        sampled, bounds = result.tokens.tolist(), result.cu_tokens.tolist()
        # The fast path takes row i's token by its index: each of its sample rows must have exactly one.
        if not (row_errors or row_logprobs or result.logprobs) and bounds[step.num_decodes] == step.num_decodes:
            slow_rows = self._commit_plain_decodes(step, sampled[: step.num_decodes], outputs)
        ends, epochs, samples = step.ends, step.epochs, step.sample_indices
        for row in slow_rows:
            sequence, sample = step.sequences[row], samples[row]
            num_drafts = sequence.end_samples() if sample >= 0 else 0
            # Aborted or failed while the step was in flight: its last output has gone out.
            if sequence.status is SequenceStatus.FINISHED:
                continue
            if row in row_errors:
                outputs.append(self.table.finish(sequence, FinishReason.ERROR, now, error=row_errors[row]))
                continue
            # A preempted sequence has lost the keys of these tokens, but its sample below is still right: that depends
            # only on the tokens before it.
            if epochs[row] == sequence.epoch and not num_drafts:
                self._advance_computed(sequence, ends[row])
                if sequence.pooled_states is not None:
                    sequence.pooled_states.add(pooled.get(row), ends[row] - step.starts[row])
            prompt_logprobs = row_logprobs.get(row, ())
            sequence.num_prompt_logprobs_done += len(prompt_logprobs)
            if sequence.pooled_states is not None:
                if sample >= 0 and epochs[row] == sequence.epoch:
                    outputs.append(self._finish_pooled(sequence, now))
            elif sample >= 0:
                first, last = bounds[sample], bounds[sample + 1]
                token_logprobs = result.logprobs[first:last] if result.logprobs else ()
                tokens = tuple(sampled[first:last])
                is_current = epochs[row] == sequence.epoch
                verified = (step, row) if num_drafts and is_current else None
                outputs.append(
                    self._append_tokens(
                        sequence, tokens, token_logprobs, prompt_logprobs, now, num_drafts=num_drafts, verified=verified
                    )
                )
            elif prompt_logprobs:
                outputs.append(
                    EngineOutput(
                        sequence.request_id, choice_index=sequence.choice_index, prompt_logprobs=prompt_logprobs
                    )
                )
        if self._checkpoints is not None:
            self._checkpoints.release_drafts(step)
        return outputs

    def _record_success(self, step: InFlightStep, now: float) -> None:
        self._record_step_time(step, now)
        if self._retries:
            self._record_retries(step)
        if not self._retries:
            self.table.oom_backoff.record_success(self.table.limits.max_batch_tokens)

    def _commit_plain_decodes(self, step: InFlightStep, tokens: list[int], outputs: list[EngineOutput]) -> list[int]:
        """Append one token for each plain decode row; return all other rows, chunks included.

        Nearly every row of nearly every step takes this path, so this is the one loop here that is written for speed.
        A sequence that was preempted, finishes or fills a block has reached its fast_path_end.
        """
        later: list[int] = []
        # Without the named tuple's own constructor, which is one more call for each row.
        new = tuple.__new__
        for row, (sequence, end, token) in enumerate(zip(step.sequences, step.ends, tokens, strict=False)):
            if end >= sequence.fast_path_end or token in sequence.stop_token_ids:
                if token in sequence.stop_token_ids or self._needs_slow_path(sequence, step.epochs[row], end):
                    later.append(row)
                    continue
                self._advance_computed(sequence, end)
            # The slow path advances again, and ends the sequence or raises the grammar's error.
            if (grammar := sequence.grammar) is not None and not grammar.try_advance(token):
                later.append(row)
                continue
            sequence.num_pending_samples -= 1
            sequence.num_computed_tokens = end
            sequence.token_ids.append(token)
            outputs.append(
                new(
                    EngineOutput,
                    (sequence.request_id, (token,), (), None, None, None, None, sequence.choice_index, (), b""),
                )
            )
        self.counters.output_tokens += len(outputs)
        return [*later, *range(step.num_decodes, len(step.ends))]

    @staticmethod
    def _needs_slow_path(sequence: Sequence, epoch: int, num_computed: int) -> bool:
        """Return whether it was preempted or finished, ends with its next token, or has no token yet."""
        is_stale = sequence.status is not SequenceStatus.RUNNING or sequence.epoch != epoch
        ends = num_computed + 1 >= sequence.max_length
        return is_stale or ends or not sequence.has_first_token

    def _advance_computed(self, sequence: Sequence, num_computed: int) -> None:
        """Confirm computed tokens; other sequences can now share the full blocks."""
        table = sequence.table
        assert table is not None
        sequence.num_computed_tokens = num_computed
        full = num_computed // self._block_size
        if self._caching and full > len(sequence.block_hashes):
            sequence.update_block_hashes(self._block_size)
        if self._windowed or (self._caching and full > table.num_published):
            self.cache.publish(table, sequence.block_hashes, num_computed)
        # Next stop: a block is full or lies behind a window, or the next token is the last one.
        if sequence.has_first_token:
            sequence.fast_path_end = min(self.cache.next_publish_at(num_computed), sequence.max_length - 1)

    def _record_step_time(self, step: InFlightStep, now: float) -> None:
        """Record the duration of a step; with two in flight it starts when the previous one is committed."""
        seconds = now - max(step.scheduled_at, self._last_commit)
        self._last_commit = now
        if seconds > 0:
            self.step_times.update(StepFeatures.of(step.plan, step.num_decodes), seconds * 1e3)

    def _charge_tenants(self, step: InFlightStep, result: StepResult) -> None:
        """Charge tenants for their output tokens in the waiting queue."""
        counts, finished = np.diff(result.cu_tokens).tolist(), SequenceStatus.FINISHED
        sampled = [
            (sequence.request.tenant, counts[sample])
            for sequence, sample in zip(step.sequences, step.sample_indices, strict=True)
            if sample >= 0 and sequence.status is not finished
        ]
        for (tenant, count), times in Counter(sampled).items():
            self.waiting.record_service(tenant, count * times)

    def rollback(self, plan: StepPlan, error: Exception | None = None, now: float = 0.0) -> list[EngineOutput]:
        """Undo the newest in-flight step, as if it had never been scheduled.

        After a MemoryError the next steps are smaller, as far as possible. With another error its sequences are
        suspects: they run again in halves until the culprit fails alone. Returns the last output of a sequence that ran
        alone already.
        """
        step = self.in_flight_steps.pop()
        assert step.plan is plan, "steps are rolled back newest first"
        # Whether the runner has released them is unknown; it ignores a slot that is empty.
        self.table.released_slots = [*plan.released_slots, *self.table.released_slots]
        if self._checkpoints is not None:
            self._checkpoints.roll_back(step)
        self._has_lost_states |= self._has_state
        for sequence, epoch, start, end, sample in (rows := step.rows):
            num_drafts = sequence.end_samples() if sample >= 0 else 0
            if num_drafts and error is not None:
                sequence.may_have_drafts = False
            # A sequence that was preempted since has no tokens scheduled, and may have started again.
            if sequence.status is SequenceStatus.RUNNING and sequence.epoch == epoch:
                sequence.num_scheduled_tokens = start
                # The runner may have applied any part of the plan, so the next one sends the whole state (ADR 0002).
                sequence.is_in_runner = False
                if self._has_state:
                    self._retries[sequence] = max(end - num_drafts, self._retries.get(sequence, 0))
                if sequence in step.forked:  # the first block was not copied
                    size = self._block_size
                    sequence.num_scheduled_tokens = sequence.num_computed_tokens = start // size * size
        if error is None:
            return []
        self.counters.failed_steps += 1
        self._has_failed = True
        if isinstance(error, MemoryError) and self.table.oom_backoff.shrink(plan.num_tokens):
            self._step_scheduler.restart_turn(step.sequences)
            return []
        survivors = [row.sequence for row in rows if row.sequence.epoch == row.epoch]
        survivors = [sequence for sequence in survivors if sequence.status is SequenceStatus.RUNNING]
        # One row, not one survivor: only a step of this sequence alone, without drafts, proves that it is at fault.
        if len(rows) == 1 and not len(plan.num_drafts):
            cause = error if isinstance(error, RequestFailed) else ForwardFailed(f"the model raised: {error}")
            return [self.table.finish(sequence, FinishReason.ERROR, now, error=cause) for sequence in survivors]
        if self._has_state and self._suspects:
            self._suspects.pop()  # those that ran in this step, of which the survivors are
        middle = (len(survivors) + 1) // 2
        # schedule() takes the last half first, so sequences keep their order.
        self._suspects += [half for half in (survivors[middle:], survivors[:middle]) if half]
        return []

    def _append_tokens(
        self, sequence: Sequence, tokens: tuple[int, ...], logprobs: tuple[TokenLogprob | None, ...],
        prompt_logprobs: tuple[TokenLogprob, ...], now: float, *, num_drafts: int = 0,
        verified: tuple[InFlightStep, int] | None = None,
    ) -> EngineOutput:  # fmt: skip
        """Append new tokens, up to the one that ends the choice.

        Args:
            sequence, tokens, logprobs, prompt_logprobs, now: what was sampled, and when.
            num_drafts: drafts of the row; all of `tokens` but the last one are confirmed drafts.
            verified: a step and its row with drafts, whose computed tokens are not confirmed yet.
        """
        num_confirmed = len(tokens) - 1
        if is_first := not sequence.has_first_token:
            sequence.has_first_token = True
            sequence.timeline_recorder.record("first_token", now)
            self.table.enqueue_deferred(self.sequence_groups[sequence.request_id], now)
        reason: FinishReason | None = None
        error: ChairliftError | None = None
        for place, token in enumerate(tokens):
            if verified is not None:
                self._confirm_computed(sequence, *verified, place)
            try:
                reason = sequence.append_token(token)
            except StructuredOutputFailed as failure:
                reason, error = FinishReason.ERROR, failure
            if reason is not None:
                # The client does not get a token that the grammar rejects.
                kept = place + (error is None)
                tokens, logprobs = tokens[:kept], logprobs[:kept]
                break
        self.counters.output_tokens += len(tokens)
        if num_drafts and self._draft_planner is not None:
            num_confirmed = min(num_confirmed, len(tokens))
            self.counters.record_drafts(num_drafts, num_confirmed)
            self._draft_planner.record(sequence, num_drafts, num_confirmed)
        # Preempted with this sample in flight: its input has grown while it waits.
        if sequence.status is SequenceStatus.WAITING:
            self.table.waiting_tokens += len(tokens)
        entries = tuple(entry for entry in logprobs if entry is not None) if logprobs else ()
        if reason is not None:
            if error is None and self._draft_planner is not None:
                self._draft_planner.learn(sequence)
                self._deadlines.tokens_per_step = self._draft_planner.most_tokens_per_step
            return self.table.finish(
                sequence, reason, now, error=error, tokens=tokens, logprobs=entries, prompt_logprobs=prompt_logprobs
            )
        if verified is not None:
            self._reject_drafts(sequence, *verified)
        if self._caching and sequence.status is SequenceStatus.WAITING:
            sequence.update_block_hashes(self._block_size)
        return EngineOutput(
            sequence.request_id,
            tokens,
            entries,
            timeline=sequence.timeline_recorder.build() if is_first else None,
            choice_index=sequence.choice_index,
            prompt_logprobs=prompt_logprobs,
        )

    def _confirm_computed(self, sequence: Sequence, step: InFlightStep, row: int, place: int) -> None:
        """Confirm the known token of a row with drafts (place 0), or the draft in that place, which was sampled."""
        position = step.starts[row] + 1 + place
        self._advance_computed(sequence, position)
        if self._checkpoints is not None:
            self._checkpoints.publish_draft(step, row, position)

    def _reject_drafts(self, sequence: Sequence, step: InFlightStep, row: int) -> None:
        """Take back the tokens and blocks of the drafts that are not confirmed, and the state behind them."""
        sequence.num_scheduled_tokens = sequence.num_computed_tokens
        if sequence.num_computed_tokens < step.ends[row]:
            assert sequence.table is not None
            self.cache.trim(sequence.table, sequence.num_computed_tokens)
            if self._checkpoints is not None:
                self._checkpoints.load_draft(step, row, sequence.num_computed_tokens)

    def _finish_pooled(self, sequence: Sequence, now: float) -> EngineOutput:
        """Finish a request whose whole prompt is computed with its embedding; its token is dropped."""
        assert sequence.pooled_states is not None
        try:
            embedding = sequence.pooled_states.embedding()
        except RequestFailed as error:
            return self.table.finish(sequence, FinishReason.ERROR, now, error=error)
        return self.table.finish(sequence, FinishReason.STOP, now, embedding=embedding)

    def check_integrity(self) -> list[str]:
        """Check blocks, slots and counters; returns the errors."""
        held = [checkpoint for step in self.in_flight_steps for checkpoint in step.checkpoints]
        return [*self.cache.check_integrity(held), *self.table.check()]

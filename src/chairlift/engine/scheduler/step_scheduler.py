"""StepScheduler: chooses which sequences run in a step and how many tokens each gets.

    1. decoding sequences       one token each
    2. prefilling sequences     up to the fair chunk each, or to the end where that is near; one after the other where
                                no waiting sequence would gain by sharing
    3. the waiting queue        in its order, likewise, when the whole input fits with a growth reserve; for its head
                                running sequences may be preempted (priority_preemption.py)
    4. long prompts             what is left, oldest first
    5. drafts                   in a step without prompt tokens (draft_planner.py)

That is `mixed`; a batching policy may put 1 last, bound the prompt tokens, or start no waiting sequence
(batching_policy.py).

Bounds: at most max_bypass other requests bypass a request that does not fit, in its life. It waits for another
request's prefix at most prefix_wait_steps an epoch. After protect_after_preemptions preemptions it is protected: it is
preempted only when every unprotected sequence has been, and then the last to arrive goes first.

How long a request R waits, in launched steps. Let ahead(R) be the sequences that run when R is queued, those before it
in the waiting queue, the max_bypass that may bypass it, and those that start behind it while it waits for a prefix (at
most max_running_sequences a step). Under fifo, ahead(R) is settled when R is queued. Under priority, fair and
cache_aware later requests may get ahead of R too; each queue states how many. Let `work` be the prompt and output
tokens of ahead(R), `outputs` their output tokens alone (both by the requests' parameters):

    wait(R) <= (1 + protect_after_preemptions + outputs) * work + depth * (1 + failed steps)

For while R waits only ahead(R) runs, and each launched step gives one of them at least one token, or fails and takes up
to `depth` launches with it. A token is given again only after a preemption. One of ahead(R) is preempted at most
protect_after_preemptions times without protection. After that it is preempted only for sequences before it, after a
generated token took a block that was free beyond all reserved input when it started: less than once for each output.
Where layers keep a state, a failed step may also take the tokens of its sequences back to their last saved states.
"""

from itertools import islice

from chairlift.core.errors import OutOfBlocks
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.kv.kv_cache_manager import KVCacheManager, PrefixHit
from chairlift.engine.queue_wait_by_reason import WaitReason
from chairlift.engine.scheduler.batching_policy import StepContext, make_batching_policy
from chairlift.engine.scheduler.deadlines import Deadlines, Unreachable
from chairlift.engine.scheduler.draft_planner import DraftPlanner
from chairlift.engine.scheduler.itl_controller import ItlController
from chairlift.engine.scheduler.priority_preemption import PriorityPreemption
from chairlift.engine.scheduler.running_scheduler import MAX_PARALLEL_PREFILLS, RunningScheduler
from chairlift.engine.scheduler.sequence_table import SequenceTable
from chairlift.engine.scheduler.step_builder import StepBuilder
from chairlift.engine.scheduler.step_cost_model import StepCostModel
from chairlift.engine.sequence import Sequence, SequenceStatus

MAX_SKIPPED_WAITING = 128
"""Waiting sequences skipped in one step before the iteration over the waiting queue ends."""


class StepScheduler:
    """Fills steps from one SequenceTable; remembers only how the last pass over the queue ended.

    Attributes:
        draft_planner: gives drafts to decoding sequences; None for none.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: KVCacheManager,
        sequence_table: SequenceTable,
        lookahead: int,
        times: StepCostModel,
        deadlines: Deadlines,
    ) -> None:
        self._config = config
        self._cache = cache
        self._sequence_table = sequence_table
        self._batching = make_batching_policy(config)
        self._deadlines = deadlines
        self._itl_controller = None if config.target_itl_ms is None else ItlController(config.target_itl_ms, times)
        self._lookahead = lookahead
        self._running_scheduler = RunningScheduler(config, cache, sequence_table, lookahead)
        self._preemption = PriorityPreemption(
            config, cache, sequence_table, self._running_scheduler, deadlines, lookahead
        )
        self.draft_planner: DraftPlanner | None = None
        self._num_newly_scheduled = 0
        self._stopped_by: WaitReason | None = None
        self._turn = 0  # index of the running sequence that comes first in a step too small for all

    def schedule_step(self, builder: StepBuilder, now: float) -> None:
        """Fill a whole step."""
        sequence_table, running_scheduler, pool = self._sequence_table, self._running_scheduler, self._cache.pool
        # Only OOMBackoff lowers the tokens below the running sequences; otherwise each decoding sequence has one.
        if builder.tokens_left < len(sequence_table.running):
            self._schedule_in_turn(builder, now)
            return
        planner = self.draft_planner
        running = list(sequence_table.running.values())
        # Where a prompt has tokens in this step, no sequence will have drafts.
        may_wait = planner is not None and builder.num_in_flight and not len(sequence_table.waiting)
        awaits_samples = planner.awaits_samples if planner is not None and may_wait and planner.pays(running) else None
        running_sets = running_scheduler.classify(running, awaits_samples)
        if awaits_samples is not None and running_sets.prefilling:
            running_sets = running_scheduler.classify(running)
        allowance = self._batching.decide(StepContext(
            running=len(sequence_table.running), num_decoding=running_sets.num_decoding,
            num_prefilling=len(running_sets.prefilling), free_share=pool.available / pool.usable,
            num_free_slots=max(0, sequence_table.running_limit - len(sequence_table.running)),
            num_newly_scheduled=self._num_newly_scheduled, waiting_stopped_by=self._stopped_by,
            prefill_budget=builder.prefill_left,
        ))  # fmt: skip
        builder.prefill_left, may_schedule = allowance.prefill_tokens, allowance.may_schedule_waiting
        if self._itl_controller is not None and running_sets.num_decoding:
            left_ms = self._itl_controller.remaining_ms(running_sets)
            builder.prefill_left = min(builder.prefill_left, self._itl_controller.prefill_token_budget(left_ms))
            builder.meter = self._itl_controller.meter(left_ms)
            may_schedule = may_schedule and not self._itl_controller.is_saturated(left_ms)
        if not allowance.prompts_first:
            running_scheduler.schedule_decodes(builder, running_sets, now)
        # The fair chunk is a share of what is left: unless prompts come first, decoding sequences have theirs.
        fair_chunk = running_scheduler.fair_chunk(builder)
        sequential = self._prefills_sequentially(running_sets.prefilling, may_schedule)
        running_scheduler.schedule_prefills(builder, running_sets.prefilling, fair_chunk, now, sequential=sequential)
        # Where the queue is not walked, no sequence starts; a policy must not count those of an earlier step again.
        reason: WaitReason | None = WaitReason.BLOCKS if may_schedule else WaitReason.POLICY
        self._num_newly_scheduled = 0
        # A preemption in this step means that blocks are short: none go to a start or to more than a fair chunk.
        if not builder.preempted:
            if may_schedule:
                victims = self._preemption.preempt_for_head(builder, running_sets.prefilling, now)
                reason = self._schedule_waiting(builder, running_sets.prefilling, fair_chunk, victims, now)
            running_scheduler.schedule_leftover_prefill(builder)
        # Where no prompt has a token, decoding sequences run in any case: the engine must not stand still.
        if allowance.prompts_first and (allowance.generating or not builder.num_rows):
            running_scheduler.schedule_decodes(builder, running_sets, now)
        if planner is not None:
            planner.schedule(builder)
        self._stopped_by = reason
        sequence_table.wait_clock.set(reason or WaitReason.BUDGET, now)

    def _schedule_in_turn(self, builder: StepBuilder, now: float) -> None:
        """Fill a step that has fewer tokens than sequences run, because memory is short: they take turns."""
        running, num_rows = list(self._sequence_table.running.values()), builder.tokens_left
        # One round at most: where no sequence of a turn can run, because its samples are in flight, the next turn may.
        for _ in range(0, len(running), num_rows):
            start = self._turn % len(running)
            self._turn = start + num_rows
            self.schedule_suspects(builder, (running[start:] + running[:start])[:num_rows], now)
            if builder.num_rows:
                break
        self._num_newly_scheduled, self._stopped_by = 0, WaitReason.RUNNING_LIMIT
        self._sequence_table.wait_clock.set(WaitReason.RUNNING_LIMIT, now)

    def restart_turn(self, sequences: list[Sequence]) -> None:
        """Let the first running sequence among these come first in a step that is too small for all."""
        failed = set(sequences)
        places = (place for place, each in enumerate(self._sequence_table.running.values()) if each in failed)
        self._turn = next(places, self._turn)

    def schedule_suspects(self, builder: StepBuilder, suspects: list[Sequence], now: float) -> None:
        """Give tokens only to those suspects that are still running."""
        running_scheduler = self._running_scheduler
        running_sets = running_scheduler.classify([each for each in suspects if each.status is SequenceStatus.RUNNING])
        running_scheduler.schedule_decodes(builder, running_sets, now)
        running_scheduler.schedule_prefills(
            builder, running_sets.prefilling, running_scheduler.fair_chunk(builder), now
        )

    def _prefills_sequentially(self, prefilling: list[Sequence], may_schedule: bool) -> bool:
        """Return whether prompts may be prefilled one by one: no next waiting sequence needs fewer tokens.

        ADR 0027.
        """
        if not (prefilling and self._batching.keeps_prefill_share and self._config.may_prefill_sequentially):
            return False
        least = min(sequence.num_unscheduled_tokens for sequence in prefilling)
        for sequence in islice(
            self._sequence_table.waiting, max(0, MAX_PARALLEL_PREFILLS - len(prefilling)) if may_schedule else 0
        ):
            # match() costs a look-up for each cached block, so it is asked only where it can change the result.
            num_needed = len(sequence.token_ids)
            if num_needed >= least:
                num_needed -= self._sequence_table.match(sequence).num_tokens
            if num_needed < least:
                return False
        return True

    # -- waiting ---------------------------------------------------------------------------------------------------

    def _schedule_waiting(
        self, builder: StepBuilder, prefilling: list[Sequence], fair_chunk: int, victims: list[Sequence], now: float
    ) -> WaitReason | None:
        """Start waiting sequences, except `victims`; returns why the queue does not advance, if so."""
        sequence_table = self._sequence_table
        if (reason := self._limit_reached(builder, 0)) is not None or not len(sequence_table.waiting):
            return reason
        scheduled: list[Sequence] = []
        bypassed: list[Sequence] = []
        unreachable: list[tuple[Sequence, Unreachable]] = []
        # Running prompts still take these blocks; a start on them would end in a preemption (ADR 0001).
        reserved = self._running_scheduler.reserved_blocks(prefilling)
        num_examined = 0
        for sequence in sequence_table.waiting:
            if (limit := self._limit_reached(builder, len(scheduled))) is not None:
                reason = reason or limit
                break
            if num_examined >= MAX_SKIPPED_WAITING:
                break
            num_examined += 1
            reserve = self._running_scheduler.growth_reserve_blocks(len(sequence_table.running) + len(scheduled))
            room = self._cache.pool.available - reserved - reserve
            if room < 1 or len(bypassed) > self._config.max_bypass:
                reason = WaitReason.BLOCKS
                break
            # Input with a sample in flight is not complete. A victim would take back the blocks that it left the head.
            if sequence.num_pending_samples or sequence in victims or self._prefix_still_pending(sequence):
                continue
            hit = self._sequence_table.match(sequence)
            if hit.pending is not None and self._start_prefix_wait(sequence, hit, now):
                continue
            sequence.timeline_recorder.prefix_wait_ended(sequence_table.wait_clock, now)
            error = self._deadlines.unreachable_error(sequence, hit.num_tokens, now)
            if error is not None:
                unreachable.append((sequence, error))
                continue
            # The whole input must fit, not only its first chunk: long prompts would preempt each other for ever.
            if room < self._cache.blocks_needed(hit, len(sequence.token_ids), self._lookahead):
                reason = WaitReason.BLOCKS
                if sequence.num_bypasses >= self._config.max_bypass:
                    break
                bypassed.append(sequence)
                continue
            try:
                reserved += self._start_sequence(builder, sequence, hit, fair_chunk)
            except OutOfBlocks:
                reason = WaitReason.BLOCKS
                break
            scheduled.append(sequence)
            # Only sequences that are skipped count against MAX_SKIPPED_WAITING.
            num_examined -= 1
            if self._count_bypass(bypassed):
                break
        # Both loops change the queue, so they come after the walk over it.
        for sequence, error in unreachable:
            sequence_table.fail(sequence, error, now)
        for sequence in scheduled:
            sequence_table.start_running(sequence, now)
        self._num_newly_scheduled = len(scheduled)
        return reason

    def _count_bypass(self, bypassed: list[Sequence]) -> bool:
        """Count a bypass of these sequences; returns whether one of them may not be bypassed again."""
        for waiting in bypassed:
            waiting.num_bypasses += 1
        return any(waiting.num_bypasses >= self._config.max_bypass for waiting in bypassed)

    def _limit_reached(self, builder: StepBuilder, scheduled: int) -> WaitReason | None:
        if self._running_scheduler.bounded_chunk(builder, 1, 1, 0) < 1:
            return WaitReason.BUDGET
        is_full = len(self._sequence_table.running) + scheduled >= self._sequence_table.running_limit
        return WaitReason.RUNNING_LIMIT if is_full else None

    def _prefix_still_pending(self, sequence: Sequence) -> bool:
        """Return whether the sequence keeps waiting for the same block, without a new match."""
        if sequence.awaited_block_hash is None or not self._cache.is_pending(sequence.awaited_block_hash):
            return False
        return self._may_wait_for_prefix(sequence)

    def _may_wait_for_prefix(self, sequence: Sequence) -> bool:
        sequence.num_prefix_waits += 1
        return sequence.num_prefix_waits <= self._config.prefix_wait_steps

    def _start_prefix_wait(self, sequence: Sequence, hit: PrefixHit, now: float) -> bool:
        if not self._may_wait_for_prefix(sequence):
            sequence.awaited_block_hash = None
            return False
        sequence.awaited_block_hash = hit.pending
        sequence.timeline_recorder.prefix_wait(self._sequence_table.wait_clock, now)
        return True

    def _start_sequence(self, builder: StepBuilder, sequence: Sequence, hit: PrefixHit, fair_chunk: int) -> int:
        """Share the hit, reserve the first chunk; returns the blocks still reserved for its input."""
        num_needed = len(sequence.token_ids) - hit.num_tokens
        # The meter may leave no token behind a long cached prefix, but a sequence that starts needs a row.
        count = max(1, self._running_scheduler.fair_chunk_tokens(builder, num_needed, fair_chunk, hit.num_tokens))
        # Others have shared a longer prefix without a saved state at its end: with it the next one can start there.
        if hit.num_shared_tokens > hit.num_tokens and not sequence.epoch:
            positions = {*sequence.checkpoint_positions, hit.num_shared_tokens}
            sequence.checkpoint_positions = tuple(sorted(positions))
        sequence.table = self._cache.allocate_table(
            hit, hit.num_tokens + count, sequence.block_hashes, sequence.checkpoint_positions
        )
        sequence.num_scheduled_tokens = sequence.num_computed_tokens = hit.num_tokens
        if hit.tail:
            builder.copies[sequence] = self._cache.copies(hit, sequence.table)
        # After a preemption the prompt is computed again, but it was counted at the first start.
        if not sequence.epoch:
            self._count_first_schedule(sequence, hit)
        builder.add_prefill(sequence, count)
        return self._cache.blocks_still_needed(sequence.table, len(sequence.token_ids), self._lookahead)

    def _count_first_schedule(self, sequence: Sequence, hit: PrefixHit) -> None:
        """Count the first start of a sequence; a further choice has no prompt of its own."""
        sequence.cached_tokens = min(hit.num_tokens, sequence.num_prompt_tokens)
        if not sequence.choice_index:
            self._sequence_table.counters.record_first_schedule(sequence.num_prompt_tokens, sequence.cached_tokens)
        self._sequence_table.waiting.record_service(sequence.request.tenant, len(sequence.token_ids) - hit.num_tokens)

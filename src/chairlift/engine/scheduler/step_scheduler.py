"""Who rides in a step: those on board, then those in line, then what is left for long prompts.

    1. everybody who generates            one token each
    2. those still reading their prompt   up to the fair chunk each, or to the end where that is near; one after the
                                          other where nobody in line would gain by sharing
    3. the line, in its order             likewise, when the whole input fits with a growth reserve;
                                          for its head others may have to leave (making_way.py)
    4. what is left                       to the long prompts, oldest first

That is `mixed`; a batching policy may put 1 last, bound what prompts get, or keep the line waiting (batching.py).

Bounds: a request that does not fit is passed by at most max_bypass others in its life; it waits for another's prefix
at most prefix_wait_steps a ride; after protect_after_preemptions preemptions it leaves only when everybody without
that protection
has, and then the last to come leaves first.

How long a request R stands in line, in launched steps. Let ahead(R) be those on board when it joins, those before it in
line, the max_bypass that may pass it, and those that board behind it while it waits for a prefix (at most `seats` a
step). Under fifo that is settled when R joins; under priority, fair and cache_aware those count too who come later and
get ahead of it: how many these can be is said with each line. Let `work` be the prompt and output tokens of ahead(R),
`outputs` their output tokens alone (both as asked for):

    wait(R) <= (1 + protect_after_preemptions + outputs) * work + depth * (1 + failed steps)

For while R waits only ahead(R) rides, and each launched step hands one of them a token at least, or fails and takes up
to `depth` launches with it. A token is handed out again only after a preemption. One of ahead(R) is sent away at most
protect_after_preemptions times without protection, and then only for those before it, after a generated token took a
block that was
free beyond all promised input when it boarded: less than once for each output.
"""

from itertools import islice

from chairlift.core.errors import DeadlineUnreachable, OutOfBlocks
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.kv.kv_cache_manager import KVCacheManager, PrefixHit
from chairlift.engine.scheduler.batching_policy import StepContext, make_batching_policy
from chairlift.engine.scheduler.deadlines import Deadlines
from chairlift.engine.scheduler.itl_controller import ItlController
from chairlift.engine.scheduler.priority_preemption import PriorityPreemption
from chairlift.engine.scheduler.running_scheduler import MAX_PARALLEL_PREFILLS, RunningScheduler
from chairlift.engine.scheduler.sequence_table import SequenceTable
from chairlift.engine.scheduler.step_builder import StepBuilder
from chairlift.engine.scheduler.step_cost_model import StepCostModel
from chairlift.engine.sequence import Sequence, SequenceStatus
from chairlift.engine.timeline import WaitReason

MAX_SKIPPED_WAITING = 128
"""Waiting sequences that are skipped in one step before the walk along the line ends."""


class StepScheduler:
    """Fills drafts from one roster. Keeps no state of its own but how the last boarding went."""

    def __init__(
        self,
        config: SchedulerConfig,
        cache: KVCacheManager,
        roster: SequenceTable,
        lookahead: int,
        times: StepCostModel,
        deadlines: Deadlines,
    ) -> None:
        self._config = config
        self._seats = config.max_running_sequences
        self._cache = cache
        self._roster = roster
        self._batching = make_batching_policy(config)
        self._deadlines = deadlines
        self._steering = None if config.target_itl_ms is None else ItlController(config.target_itl_ms, times)
        self._lookahead = lookahead
        self._riding = RunningScheduler(config, cache, roster, lookahead)
        self._making_way = PriorityPreemption(config, cache, roster, self._riding, deadlines, lookahead)
        self._boarded = 0
        self._stopped_by: WaitReason | None = None

    def schedule_step(self, draft: StepBuilder, now: float) -> None:
        """Hand out a whole step."""
        roster, riding, pool = self._roster, self._riding, self._cache.pool
        on_board = riding.classify(list(roster.running.values()))
        share = self._batching.decide(StepContext(
            running=len(roster.running), num_decoding=on_board.num_decoding, num_prefilling=len(on_board.prefilling),
            free_share=pool.available / pool.total, num_free_slots=self._seats - len(roster.running),
            num_newly_scheduled=self._boarded, waiting_stopped_by=self._stopped_by, prefill_budget=draft.prefill_left,
        ))  # fmt: skip
        draft.prefill_left, may_board = share.prefill_tokens, share.may_schedule_waiting
        if self._steering is not None and on_board.num_decoding:
            left_ms = self._steering.remaining_ms(on_board)
            draft.prefill_left = min(draft.prefill_left, self._steering.prefill_token_budget(left_ms))
            draft.meter = self._steering.meter(left_ms)
            may_board = may_board and not self._steering.is_saturated(left_ms)
        if not share.prompts_first:
            riding.schedule_decodes(draft, on_board, now)
        fair_chunk = riding.fair_chunk(draft)
        in_turn = self._prefills_sequentially(on_board.prefilling, may_board)
        riding.schedule_prefills(draft, on_board.prefilling, fair_chunk, now, in_turn=in_turn)
        reason: WaitReason | None = WaitReason.BLOCKS if may_board else WaitReason.POLICY
        self._boarded = 0
        if not draft.preempted:
            if may_board:
                sent_away = self._making_way.preempt_for_head(draft, on_board.prefilling, now)
                reason = self._schedule_waiting(draft, on_board.prefilling, fair_chunk, sent_away, now)
            riding.schedule_leftover_prefill(draft)
        if share.prompts_first and (share.generating or not draft.num_rows):
            riding.schedule_decodes(draft, on_board, now)
        self._stopped_by = reason
        roster.wait_clock.set(reason or WaitReason.BUDGET, now)

    def schedule_suspects(self, draft: StepBuilder, suspects: list[Sequence], now: float) -> None:
        """Hand tokens to these alone, as far as they are still on board."""
        riding = self._riding
        on_board = riding.classify([each for each in suspects if each.status is SequenceStatus.RUNNING])
        riding.schedule_decodes(draft, on_board, now)
        riding.schedule_prefills(draft, on_board.prefilling, riding.fair_chunk(draft), now)

    def _prefills_sequentially(self, reading: list[Sequence], may_board: bool) -> bool:
        """Whether nobody loses by it that prompts are read one after the other: nobody who is next in line wants less.

        ADR 0027.
        """
        if not (reading and self._batching.keeps_prefill_share and self._config.may_prefill_sequentially):
            return False
        least = min(sequence.num_unscheduled_tokens for sequence in reading)
        for sequence in islice(self._roster.line, max(0, MAX_PARALLEL_PREFILLS - len(reading)) if may_board else 0):
            wanted = len(sequence.token_ids)
            if wanted >= least:
                wanted -= self._roster.match(sequence).num_tokens
            if wanted < least:
                return False
        return True

    # -- in line ---------------------------------------------------------------------------------------------------

    def _schedule_waiting(
        self, draft: StepBuilder, reading: list[Sequence], fair_chunk: int, sent_away: list[Sequence], now: float
    ) -> WaitReason | None:
        """Let waiting sequences board, but for those just sent away; returns why the line stands still, if it does."""
        roster = self._roster
        if (reason := self._limit_reached(draft, 0)) is not None or not len(roster.line):
            return reason
        boarded: list[Sequence] = []
        passed: list[Sequence] = []
        hopeless: list[tuple[Sequence, DeadlineUnreachable]] = []
        promised = self._riding.reserved_blocks(reading)
        looked_at = 0
        for sequence in roster.line:
            if (full := self._limit_reached(draft, len(boarded))) is not None:
                reason = reason or full
                break
            if looked_at >= MAX_SKIPPED_WAITING:
                break
            looked_at += 1
            reserve = self._riding.growth_reserve_blocks(len(roster.running) + len(boarded))
            room = self._cache.pool.available - promised - reserve
            if room < 1 or len(passed) > self._config.max_bypass:
                reason = WaitReason.BLOCKS
                break
            if sequence.num_pending_samples or sequence in sent_away or self._prefix_still_pending(sequence):
                continue
            hit = self._roster.match(sequence)
            if hit.pending is not None and self._start_prefix_wait(sequence, hit, now):
                continue
            sequence.timeline_recorder.prefix_wait_ended(roster.wait_clock, now)
            error = self._deadlines.unreachable_error(sequence, hit.num_tokens, now)
            if error is not None:
                hopeless.append((sequence, error))
                continue
            if room < self._cache.blocks_needed(hit, len(sequence.token_ids), self._lookahead):
                reason = WaitReason.BLOCKS
                if sequence.num_bypasses >= self._config.max_bypass:
                    break
                passed.append(sequence)
                continue
            try:
                promised += self._start_sequence(draft, sequence, hit, fair_chunk)
            except OutOfBlocks:
                reason = WaitReason.BLOCKS
                break
            boarded.append(sequence)
            looked_at -= 1
            if self._count_bypass(passed):
                break
        for sequence, error in hopeless:
            roster.fail(sequence, error, now)
        for sequence in boarded:
            roster.start_running(sequence, now)
        self._boarded = len(boarded)
        return reason

    def _count_bypass(self, passed: list[Sequence]) -> bool:
        """Somebody boarded before these; returns whether nobody may do so again with one of them."""
        for waiting in passed:
            waiting.num_bypasses += 1
        return any(waiting.num_bypasses >= self._config.max_bypass for waiting in passed)

    def _limit_reached(self, draft: StepBuilder, boarded: int) -> WaitReason | None:
        if self._riding.bounded_chunk(draft, 1, 1, 0) < 1:
            return WaitReason.BUDGET
        return WaitReason.RUNNING_LIMIT if len(self._roster.running) + boarded >= self._seats else None

    def _prefix_still_pending(self, sequence: Sequence) -> bool:
        """Whether it goes on waiting for the same block, without matching anew."""
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
        sequence.timeline_recorder.prefix_wait(self._roster.wait_clock, now)
        return True

    def _start_sequence(self, draft: StepBuilder, sequence: Sequence, hit: PrefixHit, fair_chunk: int) -> int:
        """Share the hit, reserve the first chunk; returns the blocks still promised to its input."""
        wanted = len(sequence.token_ids) - hit.num_tokens
        count = max(1, self._riding.fair_chunk_tokens(draft, wanted, fair_chunk, hit.num_tokens))
        sequence.table = self._cache.allocate_table(hit, hit.num_tokens + count, sequence.block_hashes)
        sequence.num_scheduled_tokens = sequence.num_computed_tokens = hit.num_tokens
        if hit.tail:
            draft.copies[sequence] = self._cache.copies(hit, sequence.table)
        if not sequence.epoch:
            self._count_first_schedule(sequence, hit)
        draft.add_prefill(sequence, count)
        return self._cache.blocks_still_needed(sequence.table, len(sequence.token_ids), self._lookahead)

    def _count_first_schedule(self, sequence: Sequence, hit: PrefixHit) -> None:
        """Count what boards for the first time; a further choice has no prompt of its own."""
        sequence.cached_tokens = min(hit.num_tokens, sequence.num_prompt_tokens)
        if not sequence.choice_index:
            self._roster.counters.record_first_schedule(sequence.num_prompt_tokens, sequence.cached_tokens)
        self._roster.line.record_service(sequence.request.tenant, len(sequence.token_ids) - hit.num_tokens)

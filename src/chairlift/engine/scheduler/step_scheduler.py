"""Who rides in a step: those on board, then those in line, then what is left for long prompts.

    1. everybody who generates            one token each
    2. those still reading their prompt   up to the fair chunk each, or to the end where that is near; one after the
                                          other where nobody in line would gain by sharing
    3. the line, in its order             likewise, when the whole input fits with a growth reserve;
                                          for its head others may have to leave (making_way.py)
    4. what is left                       to the long prompts, oldest first

That is `mixed`; a batching policy may put 1 last, bound what prompts get, or keep the line waiting (batching.py).

Bounds: a request that does not fit is passed by at most max_bypass others in its life; it waits for another's prefix
at most prefix_wait_steps a ride; after protect_after preemptions it leaves only when everybody without that protection
has, and then the last to come leaves first.

How long a request R stands in line, in launched steps. Let ahead(R) be those on board when it joins, those before it in
line, the max_bypass that may pass it, and those that board behind it while it waits for a prefix (at most `seats` a
step). Under fifo that is settled when R joins; under priority, fair and cache_aware those count too who come later and
get ahead of it: how many these can be is said with each line. Let `work` be the prompt and output tokens of ahead(R),
`outputs` their output tokens alone (both as asked for):

    wait(R) <= (1 + protect_after + outputs) * work + depth * (1 + failed steps)

For while R waits only ahead(R) rides, and each launched step hands one of them a token at least, or fails and takes up
to `depth` launches with it. A token is handed out again only after a preemption. One of ahead(R) is sent away at most
protect_after times without protection, and then only for those before it, after a generated token took a block that was
free beyond all promised input when it boarded: less than once for each output.
"""

from itertools import islice

from chairlift.core.errors import DeadlineUnreachable, OutOfBlocks
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.kv.kv_cache_manager import Hit, KVCache
from chairlift.engine.scheduler.batching_policy import Seen, make_batching
from chairlift.engine.scheduler.deadlines import Deadlines
from chairlift.engine.scheduler.itl_controller import Steering
from chairlift.engine.scheduler.priority_preemption import MakingWay
from chairlift.engine.scheduler.running_scheduler import READERS, Riding
from chairlift.engine.scheduler.sequence_table import Roster
from chairlift.engine.scheduler.step_builder import Draft
from chairlift.engine.scheduler.step_cost_model import StepTimes
from chairlift.engine.sequence import Sequence, Status
from chairlift.engine.timeline import WaitReason

MAX_LOOKED_AT = 128
"""Waiting sequences that are skipped in one step before the walk along the line ends."""


class Boarding:
    """Fills drafts from one roster. Keeps no state of its own but how the last boarding went."""

    def __init__(
        self,
        config: SchedulerConfig,
        cache: KVCache,
        roster: Roster,
        lookahead: int,
        times: StepTimes,
        deadlines: Deadlines,
    ) -> None:
        self._config = config
        self._seats = config.seats
        self._cache = cache
        self._roster = roster
        self._batching = make_batching(config)
        self._deadlines = deadlines
        self._steering = None if config.target_itl_ms is None else Steering(config.target_itl_ms, times)
        self._lookahead = lookahead
        self._riding = Riding(config, cache, roster, lookahead)
        self._making_way = MakingWay(config, cache, roster, self._riding, deadlines, lookahead)
        self._boarded = 0
        self._stopped_by: WaitReason | None = None

    def fill(self, draft: Draft, now: float) -> None:
        """Hand out a whole step."""
        roster, riding, pool = self._roster, self._riding, self._cache.pool
        on_board = riding.sort(list(roster.running.values()))
        share = self._batching.share(Seen(
            running=len(roster.running), generating=on_board.num_generating, reading=len(on_board.reading),
            free_share=pool.available / pool.total, seats_left=self._seats - len(roster.running),
            boarded=self._boarded, stopped_by=self._stopped_by, prefill_budget=draft.prefill_left,
        ))  # fmt: skip
        draft.prefill_left, may_board = share.prefill_tokens, share.boarding
        if self._steering is not None and on_board.num_generating:
            left_ms = self._steering.left_ms(on_board)
            draft.prefill_left = min(draft.prefill_left, self._steering.prompt_tokens(left_ms))
            draft.meter = self._steering.meter(left_ms)
            may_board = may_board and not self._steering.is_full(left_ms)
        if not share.prompts_first:
            riding.generate(draft, on_board, now)
        fair_chunk = riding.fair_chunk(draft)
        in_turn = self._reads_in_turn(on_board.reading, may_board)
        riding.read(draft, on_board.reading, fair_chunk, now, in_turn=in_turn)
        reason: WaitReason | None = WaitReason.BLOCKS if may_board else WaitReason.POLICY
        self._boarded = 0
        if not draft.preempted:
            if may_board:
                sent_away = self._making_way.make_way(draft, on_board.reading, now)
                reason = self._board(draft, on_board.reading, fair_chunk, sent_away, now)
            riding.top_up(draft)
        if share.prompts_first and (share.generating or not draft.num_rows):
            riding.generate(draft, on_board, now)
        self._stopped_by = reason
        roster.wait_clock.set(reason or WaitReason.BUDGET, now)

    def ride_again(self, draft: Draft, suspects: list[Sequence], now: float) -> None:
        """Hand tokens to these alone, as far as they are still on board."""
        riding = self._riding
        on_board = riding.sort([each for each in suspects if each.status is Status.RUNNING])
        riding.generate(draft, on_board, now)
        riding.read(draft, on_board.reading, riding.fair_chunk(draft), now)

    def _reads_in_turn(self, reading: list[Sequence], may_board: bool) -> bool:
        """Whether nobody loses by it that prompts are read one after the other: nobody who is next in line wants less.

        ADR 0027.
        """
        if not (reading and self._batching.is_even and self._config.reads_in_turn):
            return False
        least = min(sequence.num_wanted for sequence in reading)
        for sequence in islice(self._roster.line, max(0, READERS - len(reading)) if may_board else 0):
            wanted = len(sequence.token_ids)
            if wanted >= least:
                wanted -= self._roster.match(sequence).num_tokens
            if wanted < least:
                return False
        return True

    # -- in line ---------------------------------------------------------------------------------------------------

    def _board(
        self, draft: Draft, reading: list[Sequence], fair_chunk: int, sent_away: list[Sequence], now: float
    ) -> WaitReason | None:
        """Let waiting sequences board, but for those just sent away; returns why the line stands still, if it does."""
        roster = self._roster
        if (reason := self._is_full(draft, 0)) is not None or not len(roster.line):
            return reason
        boarded: list[Sequence] = []
        passed: list[Sequence] = []
        hopeless: list[tuple[Sequence, DeadlineUnreachable]] = []
        promised = self._riding.promised(reading)
        looked_at = 0
        for sequence in roster.line:
            if (full := self._is_full(draft, len(boarded))) is not None:
                reason = reason or full
                break
            if looked_at >= MAX_LOOKED_AT:
                break
            looked_at += 1
            reserve = self._riding.growth_reserve(len(roster.running) + len(boarded))
            room = self._cache.pool.available - promised - reserve
            if room < 1 or len(passed) > self._config.max_bypass:
                reason = WaitReason.BLOCKS
                break
            if sequence.num_pending or sequence in sent_away or self._prefix_still_pending(sequence):
                continue
            hit = self._roster.match(sequence)
            if hit.pending is not None and self._wait_for(sequence, hit, now):
                continue
            sequence.diary.prefix_over(roster.wait_clock, now)
            error = self._deadlines.hopeless(sequence, hit.num_tokens, now)
            if error is not None:
                hopeless.append((sequence, error))
                continue
            if room < self._cache.needed(hit, len(sequence.token_ids), self._lookahead):
                reason = WaitReason.BLOCKS
                if sequence.times_passed >= self._config.max_bypass:
                    break
                passed.append(sequence)
                continue
            try:
                promised += self._open(draft, sequence, hit, fair_chunk)
            except OutOfBlocks:
                reason = WaitReason.BLOCKS
                break
            boarded.append(sequence)
            looked_at -= 1
            if self._passes(passed):
                break
        for sequence, error in hopeless:
            roster.give_up(sequence, error, now)
        for sequence in boarded:
            roster.take_seat(sequence, now)
        self._boarded = len(boarded)
        return reason

    def _passes(self, passed: list[Sequence]) -> bool:
        """Somebody boarded before these; returns whether nobody may do so again with one of them."""
        for waiting in passed:
            waiting.times_passed += 1
        return any(waiting.times_passed >= self._config.max_bypass for waiting in passed)

    def _is_full(self, draft: Draft, boarded: int) -> WaitReason | None:
        if self._riding.chunk(draft, 1, 1, 0) < 1:
            return WaitReason.BUDGET
        return WaitReason.RUNNING_LIMIT if len(self._roster.running) + boarded >= self._seats else None

    def _prefix_still_pending(self, sequence: Sequence) -> bool:
        """Whether it goes on waiting for the same block, without matching anew."""
        if sequence.waiting_for is None or not self._cache.is_pending(sequence.waiting_for):
            return False
        return self._has_patience(sequence)

    def _has_patience(self, sequence: Sequence) -> bool:
        sequence.prefix_steps += 1
        return sequence.prefix_steps <= self._config.prefix_wait_steps

    def _wait_for(self, sequence: Sequence, hit: Hit, now: float) -> bool:
        if not self._has_patience(sequence):
            sequence.waiting_for = None
            return False
        sequence.waiting_for = hit.pending
        sequence.diary.prefix_wait(self._roster.wait_clock, now)
        return True

    def _open(self, draft: Draft, sequence: Sequence, hit: Hit, fair_chunk: int) -> int:
        """Share the hit, reserve the first chunk; returns the blocks still promised to its input."""
        wanted = len(sequence.token_ids) - hit.num_tokens
        count = max(1, self._riding.fairly(draft, wanted, fair_chunk, hit.num_tokens))
        sequence.table = self._cache.open(hit, hit.num_tokens + count, sequence.block_hashes)
        sequence.num_scheduled = sequence.num_computed = hit.num_tokens
        if hit.tail:
            draft.copies[sequence] = self._cache.copies(hit, sequence.table)
        if not sequence.ride:
            self._count(sequence, hit)
        draft.give_prefill(sequence, count)
        return self._cache.still_needed(sequence.table, len(sequence.token_ids), self._lookahead)

    def _count(self, sequence: Sequence, hit: Hit) -> None:
        """Count what boards for the first time; a further choice has no prompt of its own."""
        sequence.cached_tokens = min(hit.num_tokens, sequence.num_prompt)
        if not sequence.index:
            self._roster.counters.boarded(sequence.num_prompt, sequence.cached_tokens)
        self._roster.line.served(sequence.request.tenant, len(sequence.token_ids) - hit.num_tokens)

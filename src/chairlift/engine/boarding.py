"""Who rides in a step: those on board, then those in line, then what is left for long prompts.

    1. everybody who generates            one token each
    2. those still reading their prompt   up to the fair chunk each
    3. the line, in its order             up to the fair chunk each, when the whole input fits with a growth reserve
    4. what is left                       to the long prompts, oldest first

That is `mixed`; a batching policy may put 1 last, bound what prompts get, or keep the line waiting (batching.py).

Bounds: a request that does not fit is passed by at most max_bypass others in its life; it waits for another's prefix
at most prefix_wait_steps a ride; after protect_after preemptions it leaves only when everybody without that protection
has, and then the last to come leaves first.

How long a request R stands in line, in launched steps. Let ahead(R) be those on board when it joins, those before it in
line, the max_bypass that may pass it, and those that board behind it while it waits for a prefix (at most `seats` a
step); `work` their prompt and output tokens, `outputs` their output tokens alone (both as asked for):

    wait(R) <= (1 + protect_after + outputs) * work + depth * (1 + failed steps)

For while R waits only ahead(R) rides, and each launched step hands one of them a token at least, or fails and takes up
to `depth` launches with it. A token is handed out again only after a preemption. One of ahead(R) is sent away at most
protect_after times without protection, and then only for those before it, after a generated token took a block that was
free beyond all promised input when it boarded: less than once for each output.
"""

from chairlift.core.errors import DeadlineUnreachable, OutOfBlocks
from chairlift.engine.batching import Seen, make_batching
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.deadlines import Deadlines
from chairlift.engine.flight import Draft
from chairlift.engine.kv.cache import Hit, KVCache
from chairlift.engine.riding import Riding
from chairlift.engine.roster import Roster
from chairlift.engine.sequence import Sequence, Status
from chairlift.engine.steering import Steering
from chairlift.engine.step_times import StepTimes
from chairlift.engine.timeline import WaitReason

MAX_LOOKED_AT = 128
"""Waiting sequences that are skipped in one step before the walk along the line ends."""

GROWTH_TOKENS = 16
"""Tokens by which everybody on board should be able to grow before the next one boards."""


class Boarding:
    """Fills drafts from one roster. Keeps no state but how the last boarding went, and the batching policy's."""

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
        self._riding = Riding(config, cache, roster)
        self._boarded = 0
        self._stopped_by: WaitReason | None = None

    def fill(self, draft: Draft, now: float) -> None:
        """Hand out a whole step."""
        roster, riding, pool = self._roster, self._riding, self._cache.pool
        on_board = riding.sort(list(roster.running.values()))
        sent_away: list[Sequence] = []
        if roster.line.sends_away and len(roster.line):
            sent_away = self._make_way(on_board.reading, now)
            on_board = riding.sort(list(roster.running.values())) if sent_away else on_board
        share = self._batching.share(Seen(
            generating=on_board.num_generating, reading=len(on_board.reading),
            free_share=pool.available / pool.total, seats_left=self._seats - len(roster.running),
            boarded=self._boarded, stopped_by=self._stopped_by, prefill_budget=draft.prefill_left,
        ))  # fmt: skip
        draft.prefill_left, may_board = share.prefill_tokens, share.boarding
        if self._steering is not None and on_board.num_generating:
            draft.prefill_left = min(draft.prefill_left, self._steering.prompt_tokens(on_board))
            may_board = may_board and not self._steering.is_full(on_board)
        if not share.prompts_first:
            riding.generate(draft, on_board, now)
        riding.read(draft, on_board.reading, now)
        reason: WaitReason | None = WaitReason.BLOCKS if may_board else WaitReason.POLICY
        self._boarded = 0
        if may_board and not draft.preempted:
            reason = self._board(draft, on_board.reading, sent_away, now)
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
        riding.read(draft, on_board.reading, now)

    # -- in line ---------------------------------------------------------------------------------------------------

    def _board(self, draft: Draft, reading: list[Sequence], sent_away: list[Sequence], now: float) -> WaitReason | None:
        """Let waiting sequences board, but for those just sent away; returns why the line stands still, if it does."""
        roster = self._roster
        if (reason := self._is_full(draft, 0)) is not None or not len(roster.line):
            return reason
        boarded: list[Sequence] = []
        passed: list[Sequence] = []
        hopeless: list[tuple[Sequence, DeadlineUnreachable]] = []
        promised = self._promised(reading)
        looked_at = 0
        for sequence in roster.line:
            if (full := self._is_full(draft, len(boarded))) is not None:
                reason = reason or full
                break
            if looked_at >= MAX_LOOKED_AT:
                break
            looked_at += 1
            room = self._cache.pool.available - promised - self._growth_reserve(len(boarded))
            if room < 1 or len(passed) > self._config.max_bypass:
                reason = WaitReason.BLOCKS
                break
            if sequence.num_pending or sequence in sent_away or self._prefix_still_pending(sequence):
                continue
            hit = self._cache.match(sequence.block_hashes, len(sequence.token_ids))
            if hit.pending is not None and self._wait_for(sequence, hit, now):
                continue
            sequence.diary.prefix_over(roster.wait_clock, now)
            if sequence.deadline is not None and not sequence.ride:
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
                promised += self._open(draft, sequence, hit)
            except OutOfBlocks:
                reason = WaitReason.BLOCKS
                break
            boarded.append(sequence)
            looked_at -= 1
            for waiting in passed:
                waiting.times_passed += 1
            if any(waiting.times_passed >= self._config.max_bypass for waiting in passed):
                break
        for sequence, error in hopeless:
            roster.give_up(sequence, error, now)
        for sequence in boarded:
            roster.take_seat(sequence, now)
        self._boarded = len(boarded)
        return reason

    def _is_full(self, draft: Draft, boarded: int) -> WaitReason | None:
        if draft.tokens_left < 1 or draft.prefill_left < 1:
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

    def _promised(self, reading: list[Sequence]) -> int:
        """Blocks that those who read their prompt still need for the input they were let in with."""
        total = 0
        for sequence in reading:
            if sequence.table is not None:
                total += self._cache.still_needed(sequence.table, len(sequence.token_ids), self._lookahead)
        return total

    def _growth_reserve(self, boarded: int) -> int:
        riders = len(self._roster.running) + boarded
        return -(-riders * len(self._cache.layouts) * GROWTH_TOKENS // self._cache.config.block_size)

    def _open(self, draft: Draft, sequence: Sequence, hit: Hit) -> int:
        """Share the hit, reserve the first chunk; returns the blocks still promised to its input."""
        wanted = len(sequence.token_ids) - hit.num_tokens
        count = self._riding.chunk(draft, wanted, self._riding.fair_chunk)
        sequence.table = self._cache.open(hit, hit.num_tokens + count, sequence.block_hashes)
        sequence.num_scheduled = sequence.num_computed = hit.num_tokens
        if not sequence.ride:
            sequence.cached_tokens = hit.num_tokens
            self._roster.counters.boarded(sequence.num_prompt, hit.num_tokens)
            self._roster.line.served(sequence.request.tenant, sequence.num_prompt - hit.num_tokens)
        draft.give_prefill(sequence, count)
        return self._cache.still_needed(sequence.table, len(sequence.token_ids), self._lookahead)

    # -- making way ------------------------------------------------------------------------------------------------

    def _make_way(self, reading: list[Sequence], now: float) -> list[Sequence]:
        """Send those away whom the head of the line outranks, if it can board then and cannot before; returns them."""
        roster, cache, config = self._roster, self._cache, self._config
        head = next(iter(roster.line))
        hit = cache.match(head.block_hashes, len(head.token_ids))
        if head.num_pending or (hit.pending is not None and head.prefix_steps <= config.prefix_wait_steps):
            return []
        wanted = cache.needed(hit, len(head.token_ids), self._lookahead)
        room = cache.pool.available - self._promised(reading)

        def fits(leaving: int) -> bool:
            seats = self._seats - len(roster.running) + leaving
            return seats > 0 and room - self._growth_reserve(-leaving) >= max(1, wanted)

        leaving: list[Sequence] = []
        if fits(0):
            return leaving
        outranked = [
            each for each in roster.running.values()
            if each.num_preemptions < config.protect_after and roster.line.outranks(head, each)
        ]  # fmt: skip
        outranked.sort(key=lambda each: (-roster.line.expendable(each), self._riding.lost_tokens(each), -each.arrival))
        for each in outranked:
            leaving.append(each)
            room += self._given_back(each)
            if fits(len(leaving)):
                break
        else:
            return []
        for each in leaving:
            roster.preempt(each, now)
        return leaving

    def _given_back(self, sequence: Sequence) -> int:
        """Blocks that come free, or are promised no more, when it leaves."""
        assert sequence.table is not None
        gone = self._cache.sole_blocks(sequence.table)
        if sequence.num_wanted > 1:
            gone += self._cache.still_needed(sequence.table, len(sequence.token_ids), self._lookahead)
        return gone

"""Who rides in a step: those on board first, then those in line, then what is left for long prompts.

    1. everybody who generates            one token each
    2. those still reading their prompt   up to the fair chunk each
    3. the line, in its order             up to the fair chunk each, when the whole input fits with a growth reserve
    4. what is left                       to the long prompts, oldest first

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

from collections.abc import Iterable

from chairlift.core.errors import OutOfBlocks
from chairlift.engine.batching import Batching
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.flight import Draft
from chairlift.engine.kv.cache import Hit, KVCache
from chairlift.engine.roster import Roster
from chairlift.engine.sequence import Sequence, Status
from chairlift.engine.timeline import WaitReason

MAX_LOOKED_AT = 128
"""Waiting sequences that are skipped in one step before the walk along the line ends."""

GROWTH_TOKENS = 16
"""Tokens by which everybody on board should be able to grow before the next one boards."""


class Boarding:
    """Fills drafts from one roster. Keeps no state of its own beyond the batching policy."""

    def __init__(
        self, config: SchedulerConfig, cache: KVCache, roster: Roster, batching: Batching, lookahead: int
    ) -> None:
        self._config = config
        self._cache = cache
        self._roster = roster
        self._batching = batching
        self._lookahead = lookahead

    def fill(self, draft: Draft, now: float) -> None:
        """Hand out a whole step."""
        roster = self._roster
        self.ride(draft, roster.running.values(), now)
        reason: WaitReason | None = WaitReason.BLOCKS
        if not draft.preempted and self._may_prefill(draft):
            reason = self._board(draft, now)
            self._top_up(draft)
        roster.wait_clock.set(reason or WaitReason.BUDGET, now)

    # -- on board --------------------------------------------------------------------------------------------------

    def ride(self, draft: Draft, sequences: Iterable[Sequence], now: float) -> None:
        """Hand tokens to sequences on board, generating ones first; some may have to leave for others."""
        prompts: list[Sequence] = []
        for sequence in list(sequences):
            if sequence.status is not Status.RUNNING:
                continue
            wanted = sequence.num_wanted
            if wanted > 1:
                prompts.append(sequence)
            elif wanted and draft.tokens_left:
                table, end = sequence.table, sequence.num_scheduled + 1
                assert table is not None
                if end <= table.capacity or self._make_room(draft, sequence, end, now):
                    draft.rows[sequence] = 1
                    draft.tokens_left -= 1
        if prompts and not self._may_prefill(draft):
            return
        for sequence in prompts:
            count = self._chunk(draft, sequence.num_wanted, self._config.fair_chunk)
            if sequence.status is not Status.RUNNING or count < 1:
                continue
            if self._make_room(draft, sequence, sequence.num_scheduled + count, now):
                draft.give_prefill(sequence, count)

    def _may_prefill(self, draft: Draft) -> bool:
        pool = self._cache.pool
        return self._batching.may_prefill(free_share=pool.available / pool.total, generating=len(draft.rows))

    def _chunk(self, draft: Draft, wanted: int, bound: int) -> int:
        return min(wanted, bound, draft.tokens_left, draft.prefill_left)

    def _make_room(self, draft: Draft, sequence: Sequence, num_tokens: int, now: float) -> bool:
        """Reserve blocks, sending others back to the line while there are too few; False when it cannot ride now."""
        roster = self._roster
        while True:
            assert sequence.table is not None
            try:
                new = self._cache.reserve(sequence.table, num_tokens)
            except OutOfBlocks as error:
                victim = self._victim()
                if len(roster.running) == 1:
                    if not draft.in_flight:
                        roster.give_up(sequence, error, now)
                    return False
                draft.take_back(victim)
                draft.preempted = True
                roster.preempt(victim, now)
                if victim is sequence:
                    return False
            else:
                if new:
                    draft.new_blocks.setdefault(sequence, []).extend(new)
                return True

    def _victim(self) -> Sequence:
        """Whoever loses the least computed work; those preempted often are spared, the oldest of them to the end."""

        def loss(sequence: Sequence) -> tuple[int, int, int]:
            assert sequence.table is not None
            if sequence.num_preemptions >= self._config.protect_after:
                return 1, 0, -sequence.arrival
            return 0, self._cache.sole_tokens(sequence.table, sequence.num_computed), -sequence.arrival

        return min(self._roster.running.values(), key=loss)

    # -- in line ---------------------------------------------------------------------------------------------------

    def _board(self, draft: Draft, now: float) -> WaitReason | None:
        """Let waiting sequences board; returns why the line stands still, None when it does not."""
        roster = self._roster
        boarded: list[Sequence] = []
        passed: list[Sequence] = []
        promised = -1
        reason: WaitReason | None = None
        looked_at = 0
        for sequence in roster.line:
            if draft.tokens_left < 1 or draft.prefill_left < 1:
                reason = reason or WaitReason.BUDGET
                break
            if len(roster.running) + len(boarded) >= self._config.seats:
                reason = reason or WaitReason.RUNNING_LIMIT
                break
            if looked_at >= MAX_LOOKED_AT:
                break
            looked_at += 1
            if promised < 0:
                promised = self._promised()
            room = self._cache.pool.available - promised - self._growth_reserve(len(boarded))
            if room < 1 or len(passed) > self._config.max_bypass:
                reason = WaitReason.BLOCKS
                break
            if sequence.num_pending or self._prefix_still_pending(sequence):
                continue
            hit = self._cache.match(sequence.block_hashes, len(sequence.token_ids))
            if hit.pending is not None and self._wait_for(sequence, hit, now):
                continue
            sequence.diary.prefix_over(roster.wait_clock, now)
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
        for sequence in boarded:
            roster.take_seat(sequence, now)
        return reason

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

    def _promised(self) -> int:
        """Blocks that those on board still need for the input they were let in with."""
        total = 0
        for sequence in self._roster.running.values():
            if sequence.num_scheduled < len(sequence.token_ids) - 1:
                assert sequence.table is not None
                total += self._cache.still_needed(sequence.table, len(sequence.token_ids), self._lookahead)
        return total

    def _growth_reserve(self, boarded: int) -> int:
        riders = len(self._roster.running) + boarded
        return -(-riders * len(self._cache.layouts) * GROWTH_TOKENS // self._cache.config.block_size)

    def _open(self, draft: Draft, sequence: Sequence, hit: Hit) -> int:
        """Share the hit, reserve the first chunk; returns the blocks still promised to its input."""
        wanted = len(sequence.token_ids) - hit.num_tokens
        count = self._chunk(draft, wanted, self._config.fair_chunk)
        sequence.table = self._cache.open(hit, hit.num_tokens + count, sequence.block_hashes)
        sequence.num_scheduled = sequence.num_computed = hit.num_tokens
        if not sequence.ride:
            sequence.cached_tokens = hit.num_tokens
            self._roster.counters.boarded(sequence.num_prompt, hit.num_tokens)
        draft.give_prefill(sequence, count)
        return self._cache.still_needed(sequence.table, len(sequence.token_ids), self._lookahead)

    # -- what is left ----------------------------------------------------------------------------------------------

    def _top_up(self, draft: Draft) -> None:
        """Give the rest of the step to long prompts, as far as the blocks go without sending anybody away."""
        for sequence in draft.prompts:
            if draft.tokens_left < 1 or draft.prefill_left < 1:
                return
            count = draft.rows[sequence]
            more = self._chunk(draft, sequence.num_wanted - count, self._config.max_chunk - count)
            if more < 1:
                continue
            assert sequence.table is not None
            try:
                new = self._cache.reserve(sequence.table, sequence.num_scheduled + count + more)
            except OutOfBlocks:
                continue
            draft.new_blocks.setdefault(sequence, []).extend(new)
            draft.give_prefill(sequence, more)

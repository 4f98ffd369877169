"""PriorityPreemption: chooses the running sequences that are preempted for the head of the waiting queue."""

from chairlift.engine.config import SchedulerConfig
from chairlift.engine.kv.kv_cache_manager import KVCacheManager, PrefixHit
from chairlift.engine.scheduler.deadlines import Deadlines
from chairlift.engine.scheduler.engine_limits import EngineLimits
from chairlift.engine.scheduler.preemption_trial import PreemptionTrial
from chairlift.engine.scheduler.running_scheduler import RunningScheduler
from chairlift.engine.scheduler.sequence_table import SequenceTable
from chairlift.engine.scheduler.step_builder import StepBuilder
from chairlift.engine.sequence import Sequence

RETRY_STEPS = 32
"""Steps after which a failed search is repeated although the same sequences run."""


class PriorityPreemption:
    """Preempts running sequences for the head of the waiting queue; remembers the last failed search."""

    def __init__(
        self, config: SchedulerConfig, cache: KVCacheManager, sequence_table: SequenceTable,
        running_scheduler: RunningScheduler, deadlines: Deadlines, lookahead: int,
    ) -> None:  # fmt: skip
        self._config = config
        self._cache = cache
        self._sequence_table = sequence_table
        self._running_scheduler = running_scheduler
        self._deadlines = deadlines
        self._lookahead = lookahead
        self._failed_state: tuple[int, int, int, EngineLimits] | None = None
        self._candidates: list[Sequence] = []
        self._retry_at = 0

    def preempt_for_head(self, builder: StepBuilder, prefilling: list[Sequence], now: float) -> list[Sequence]:
        """Preempt sequences that the head outranks, if only that lets it start in this step.

        Call it when waiting sequences may start, after the running sequences got their tokens. No sequence is preempted
        for a head that waits for a prefix, for a head with an unreachable deadline (that head fails here), or for
        tokens of the step alone. Returns the victims.
        """
        sequence_table = self._sequence_table
        if len(sequence_table.running) > sequence_table.limits.max_running_requests:
            return []  # a lowered limit preempts nothing: running sequences beyond it finish
        head_hit = self._head(now) if sequence_table.waiting.can_preempt and builder.prefill_left > 0 else None
        if head_hit is None:
            return []
        head, hit = head_hit
        victims = self._find_victims(head, hit, self._running_scheduler.reserved_blocks(prefilling))
        tokens_left = builder.tokens_left
        if tokens_left < 1:
            tokens_left += sum(builder.chunks.get(each, each in builder.decodes) for each in victims)
        # The head could not start in this step, and others would take the blocks of its victims.
        if tokens_left < 1:
            return []
        for each in victims:
            builder.remove(each)
            builder.preempted = True
            sequence_table.preempt(each, now)
        return victims

    def _head(self, now: float) -> tuple[Sequence, PrefixHit] | None:
        """Return the head and its cached prefix, if a preemption could help it."""
        sequence_table, cache = self._sequence_table, self._cache
        # fail() takes the head out of the queue, so that the next one is looked at.
        while (head := next(iter(sequence_table.waiting), None)) is not None:
            if head.num_pending_samples or (self._has_failed(head) and sequence_table.counters.steps < self._retry_at):
                return None
            patient = head.num_prefix_waits <= self._config.prefix_wait_steps
            if patient and head.awaited_block_hash is not None and cache.is_pending(head.awaited_block_hash):
                return None
            hit = sequence_table.match(head)
            if patient and hit.pending is not None:
                return None
            error = self._deadlines.unreachable_error(head, hit.num_tokens, now)
            if error is None:
                return head, hit
            sequence_table.fail(head, error, now)
        return None

    def _has_failed(self, head: Sequence) -> bool:
        """Return whether the last failed search was for this head and the same running sequences."""
        return self._failed_state == self._state(head)

    def _state(self, head: Sequence) -> tuple[int, int, int, EngineLimits]:
        """Return a key that is constant while no sequence starts or stops running, and no limit changes."""
        counters = self._sequence_table.counters
        num_departures = counters.preemptions + sum(counters.finished_by_reason.values())
        return head.arrival_index, num_departures, len(self._sequence_table.running), self._sequence_table.limits

    def _find_victims(self, head: Sequence, hit: PrefixHit, reserved: int) -> list[Sequence]:
        """Return the fewest victims; none when the head fits anyway or never. Remembers a failed search."""
        sequence_table, waiting, cache = self._sequence_table, self._sequence_table.waiting, self._cache
        trial = PreemptionTrial(cache, self._lookahead, hit)

        def fits(num_running: int, room: int, revived: int) -> bool:
            needed = cache.blocks_needed(hit, len(head.token_ids), self._lookahead, revived)
            return (
                num_running < sequence_table.limits.max_running_requests
                and room - self._running_scheduler.growth_reserve_blocks(num_running) >= max(1, needed)
            )

        def fits_then() -> bool:
            num_running = len(sequence_table.running) - len(trial.sequences)
            return fits(num_running, cache.pool.available - reserved + trial.num_freed_blocks, trial.revived)

        if fits_then():
            return []
        if hit.tail:  # its source may be a victim
            hit = cache.match(head.block_hashes, len(head.token_ids))
            trial = PreemptionTrial(cache, self._lookahead, hit)
        # While the state of the last failed search is unchanged, its candidates stay valid.
        if not self._has_failed(head):
            self._candidates = [
                each for each in sequence_table.running.values()
                if each.num_preemptions < self._config.protect_after_preemptions and waiting.outranks(head, each)
            ]  # fmt: skip
        self._failed_state, self._retry_at = self._state(head), sequence_table.counters.steps + RETRY_STEPS
        # Upper bound: no block is shared, nothing is reserved. If that is not enough, an exact search is useless.
        max_blocks = sum([each.table.num_held for each in self._candidates if each.table is not None])
        if not fits(len(sequence_table.running) - len(self._candidates), cache.pool.available + max_blocks, 0):
            return []
        cost = self._running_scheduler.recompute_cost
        for each in sorted(
            self._candidates, key=lambda one: (-waiting.preemption_rank(one), cost(one), -one.arrival_index)
        ):
            trial.add(each)
            if fits_then():
                break
        else:
            return []
        self._failed_state = None
        # The last victim made the head fit. Of the others, those that would lose most are spared first.
        for each in [*trial.sequences][-2::-1]:
            trial.undo(each)
            if not fits_then():
                trial.add(each)
        return list(trial.sequences)

"""Audit: checks every plan against the limits, and every wait against its bound."""

from dataclasses import dataclass, field

from chairlift.engine.scheduler.batching_policy import MAX_PREFILL_STREAK
from chairlift.engine.scheduler.scheduler import Scheduler
from chairlift.engine.scheduler.waiting_queue.priority import PriorityQueue
from chairlift.engine.sequence import Sequence, SequenceStatus
from chairlift.engine.step_plan import StepPlan


@dataclass
class QueueStay:
    """One stay in the waiting queue: the running sequences when it began, and the counters then."""

    running: set[int]
    started: int
    steps: int
    failed: int


@dataclass
class Audit:
    """A checker of every plan against the limits, and of every wait against its bound.

    step_scheduler.py has the bound.
    """

    scheduler: Scheduler
    sequences: dict[int, Sequence] = field(default_factory=dict)
    started: list[int] = field(default_factory=list)
    stays: dict[int, QueueStay] = field(default_factory=dict)
    bypasses: dict[int, int] = field(default_factory=dict)
    streaks: dict[int, int] = field(default_factory=dict)
    num_empty_steps: int = 0
    longest_wait: int = 0
    plans: list[tuple[object, ...]] = field(default_factory=list)
    keep_plans: bool = False
    allocations_may_fail: bool = (
        False  # allocations fail although blocks are free, so a decoding sequence may miss a step
    )
    may_wait_for_samples: bool = False  # a sequence whose sample is in flight may wait for it, to have drafts then

    def __post_init__(self) -> None:
        self._schedule = self.scheduler.schedule
        self.scheduler.schedule = self.schedule  # type: ignore[method-assign]

    def record_enqueued(self, sequence: Sequence) -> None:
        counters = self.scheduler.counters
        self.sequences[sequence.arrival_index] = sequence
        running = set(self.scheduler.running)
        self.stays[sequence.arrival_index] = QueueStay(
            running, len(self.started), counters.steps, counters.failed_steps
        )

    def schedule(self, now: float) -> StepPlan | None:
        scheduler = self.scheduler
        before = dict(scheduler.running)
        epochs = {arrival: sequence.epoch for arrival, sequence in before.items()}
        num_unscheduled = {arrival: sequence.num_unscheduled_tokens for arrival, sequence in before.items()}
        starts = {arrival: sequence.num_scheduled_tokens for arrival, sequence in before.items()}
        waiting_for_samples = {
            arrival
            for arrival, sequence in before.items()
            if self.may_wait_for_samples and sequence.num_pending_samples
        }
        has_state = scheduler.cache.config.has_state
        lost = {arrival for arrival, sequence in before.items() if has_state and not sequence.is_in_runner}
        memory = scheduler.table.oom_backoff
        excused = self.allocations_may_fail or bool(scheduler._suspects) or memory.bound(len(before)) < len(before)
        waiting = set(self.stays)
        for sequence in scheduler.waiting:
            if sequence.arrival_index not in self.stays:  # it was deferred
                self.record_enqueued(sequence)
        plan = self._schedule(now)
        for arrival, sequence in before.items():
            if sequence.status is SequenceStatus.WAITING and sequence.epoch != epochs[arrival]:
                self.record_enqueued(sequence)
        started_now = [arrival for arrival in scheduler.running if arrival not in before]
        for arrival in started_now:
            self._record_start(arrival, waiting)
        self._check_slots()
        self._check_progress(plan)
        if plan is not None:
            assert plan.num_tokens <= memory.bound(plan.num_tokens), "more tokens than memory suffices for"
            self._check_budgets(plan)
            for row in scheduler.in_flight_steps[-1].rows:
                if row.sequence.arrival_index in lost:
                    loads = plan.state_loads[:, 1].tolist()
                    assert not row.start or row.sequence.slot in loads, "a row continues a state that is lost"
                elif row.sequence.arrival_index in starts:
                    assert row.start == starts[row.sequence.arrival_index], (
                        "a row does not begin where the last one ended"
                    )
            scheduled = {row.sequence.arrival_index for row in scheduler.in_flight_steps[-1].rows}
            still_running = {
                arrival for arrival, sequence in before.items()
                if sequence.status is SequenceStatus.RUNNING and sequence.epoch == epochs[arrival]
            }  # fmt: skip
            if not excused:
                left_out = still_running - scheduled - lost - waiting_for_samples
                left_out = {each for each in left_out if num_unscheduled[each] == 1}
                self._check_left_out(left_out)
            else:
                self.streaks = {arrival: count for arrival, count in self.streaks.items() if arrival not in scheduled}
        return plan

    def _check_slots(self) -> None:
        """Check that a running sequence has few unused KV token slots.

        The limit is the rest of a block plus the lookahead.
        A further choice whose copy of a block was lost with a failed step computes that block again.
        """
        size, lookahead = self.scheduler.cache.config.block_size, self.scheduler.limits.lookahead
        for sequence in self.scheduler.running.values():
            assert sequence.table is not None
            num_recomputed = size - 1 if sequence.choice_index and not sequence.has_first_token else 0
            assert sequence.table.capacity - sequence.num_computed_tokens <= size - 1 + lookahead + num_recomputed
            is_undisturbed = not (
                self.allocations_may_fail or self.scheduler.counters.failed_steps
            )  # a rolled back step keeps its blocks
            assert not is_undisturbed or sequence.table.capacity - sequence.num_scheduled_tokens <= size - 1, (
                "a sequence holds blocks that it does not need"
            )

    def _check_progress(self, plan: StepPlan | None) -> None:
        scheduler = self.scheduler
        if (
            plan is None
            and not scheduler.in_flight_steps
            and scheduler.sequences
            and not scheduler.table.pending_outputs
        ):
            self.num_empty_steps += 1
            assert self.num_empty_steps < 3, "a sequence is open, none runs and no step is in flight"
        else:
            self.num_empty_steps = 0

    def _check_budgets(self, plan: StepPlan) -> None:
        config, counts = self.scheduler.config, plan.num_new_tokens.tolist()
        assert sum(counts) == plan.num_tokens <= config.max_batch_tokens
        num_verified = int(plan.num_drafts.sum() + (plan.num_drafts > 0).sum())
        assert sum(count for count in counts if count > 1) - num_verified <= config.prefill_budget
        assert all(1 <= count <= config.max_prefill_chunk for count in counts)
        assert plan.num_rows <= config.max_running_sequences and len(set(plan.slots.tolist())) == plan.num_rows
        assert len(self.scheduler.in_flight_steps) <= config.max_in_flight_steps
        if self.keep_plans:
            arrays = (plan.slots, plan.num_new_tokens, plan.start_positions, plan.new_blocks, plan.input_ids)
            self.plans.append(
                (plan.step_id, plan.released_slots, plan.new_sequences, *(array.tobytes() for array in arrays))
            )

    def _record_start(self, arrival: int, waiting: set[int]) -> None:
        """Count the bypasses, then check the wait in the queue against the bound."""
        scheduler, config = self.scheduler, self.scheduler.config
        self.started.append(arrival)
        for older in waiting:
            sequence = self.sequences[older]
            if not self._is_before(sequence, self.sequences[arrival]):
                continue
            waits_for_prefix = sequence.awaited_block_hash is not None and scheduler.cache.is_pending(
                sequence.awaited_block_hash
            )
            excused = sequence.status is not SequenceStatus.WAITING or waits_for_prefix or sequence.num_pending_samples
            if not excused:
                self.bypasses[older] = self.bypasses.get(older, 0) + 1
                assert self.bypasses[older] <= config.max_bypass, "bypassed more often than max_bypass"
        stay = self.stays.pop(arrival)
        ahead = [
            self.sequences[sequence_ahead] for sequence_ahead in stay.running | set(self.started[stay.started : -1])
        ]
        outputs = sum(sequence_ahead.max_output_tokens for sequence_ahead in ahead)
        num_tokens = outputs + sum(sequence_ahead.num_prompt_tokens for sequence_ahead in ahead)
        failed = scheduler.counters.failed_steps - stay.failed
        waited = scheduler.counters.steps - stay.steps
        # schedule() has already counted the step with which it starts.
        failed_steps_bound = config.max_in_flight_steps * (1 + failed)
        if scheduler.cache.config.has_state:
            failed_steps_bound += failed * num_tokens  # they are computed again, from the last saved states on
        bound = (1 + config.protect_after_preemptions + outputs) * num_tokens + failed_steps_bound
        assert waited <= bound, f"waited {waited} steps, the bound is {bound}"
        # The same with the actual preemptions, which is much closer.
        work_with_preemptions = sum(
            (1 + sequence_ahead.num_preemptions) * (sequence_ahead.num_prompt_tokens + sequence_ahead.max_output_tokens)
            for sequence_ahead in ahead
        )
        assert waited <= work_with_preemptions + failed_steps_bound, (
            f"waited {waited} steps behind {work_with_preemptions} tokens of work"
        )
        self.longest_wait = max(self.longest_wait, waited)
        sequence = self.sequences[arrival]
        older_outputs = sum(
            sequence_ahead.max_output_tokens
            for sequence_ahead in self.sequences.values()
            if sequence_ahead.arrival_index <= arrival
        )
        assert sequence.num_preemptions <= config.protect_after_preemptions + older_outputs

    def _is_before(self, sequence_ahead: Sequence, other: Sequence) -> bool:
        """Whether the queue always orders one before the other."""
        queue, policy = self.scheduler.waiting, self.scheduler.config.scheduling_policy
        if isinstance(queue, PriorityQueue):
            return (queue.rank(sequence_ahead), sequence_ahead.arrival_index) < (queue.rank(other), other.arrival_index)
        return policy == "fifo" and sequence_ahead.arrival_index < other.arrival_index

    def _check_left_out(self, left_out: set[int]) -> None:
        """Check that decoding sequences run in every step, or often enough where prompts go first."""
        batching = self.scheduler.config.batching_policy
        self.streaks = {arrival: self.streaks.get(arrival, 0) + 1 for arrival in left_out}
        assert not left_out or batching in {"prefill_first", "static"}, "a decoding sequence got no token"
        if batching == "prefill_first":
            assert max(self.streaks.values(), default=0) <= MAX_PREFILL_STREAK, "prompts went first too often"

    def forget(self, arrival: int) -> None:
        """Forget a finished sequence; a stay without a start ends here."""
        self.stays.pop(arrival, None)
        self.bypasses.pop(arrival, None)

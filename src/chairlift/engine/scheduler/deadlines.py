"""Deadlines: finds sequences that have missed or cannot meet their deadline, before it computes their prompts."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from math import ceil

from chairlift.core.errors import ChairliftError, DeadlineUnreachable, RequestTimeout, TimeoutTooShort
from chairlift.engine.scheduler.step_cost_model import StepCostModel
from chairlift.engine.sequence import Sequence, SequenceStatus

MAX_REJECTIONS_PER_ESTIMATE = 10
"""Requests rejected in a row on one estimate; the next request is accepted as a probe, so that steps are measured."""

Unreachable = DeadlineUnreachable | TimeoutTooShort
"""Why a request is not started: it has waited too long, or its timeout is too short even on an idle engine."""


class Deadlines:
    """Watches the sequences that have a timeout.

    The lower bound of a request's time is its uncached prompt, prefilled alone, plus one step for each tokens_per_step
    of the output tokens that it must produce: all of them when only the length limit can end it. The bound uses the
    measured step times, with slack. The wait in the queue and the other running sequences add to it.

    Attributes:
        tokens_per_step: tokens of a step that a sequence with drafts may have; 1 without drafts.
    """

    def __init__(self, times: StepCostModel, max_chunk: int) -> None:
        self._times = times
        self._max_chunk = max_chunk
        self._heap: list[tuple[float, int, Sequence]] = []
        self._prune_at = 64
        self._num_rejected = 0
        self._known_prompt_steps = 0
        self._probe: Sequence | None = None
        self.tokens_per_step = 1.0

    def rejection(self, sequence: Sequence, cached_tokens: int, now: float) -> Unreachable | None:
        """Return why a request is rejected; None when it is accepted, also as the probe of the estimate."""
        error = self.unreachable_error(sequence, cached_tokens, now)
        if error is None:
            return None
        # A prompt was measured since: rejections are counted anew for each estimate.
        if self._known_prompt_steps != self._times.prompt_steps:
            self._known_prompt_steps, self._num_rejected = self._times.prompt_steps, 0
        self._num_rejected += 1
        if self._num_rejected <= MAX_REJECTIONS_PER_ESTIMATE:
            return error
        self._probe, self._num_rejected = sequence, 0
        return None

    def watch(self, sequence: Sequence) -> None:
        """Watch a sequence from now on, if it has a deadline."""
        if sequence.deadline is None:
            return
        if len(self._heap) >= self._prune_at:
            self._prune()
        # The whole prompt may be cached by the time of the start, so this bound leaves it out.
        latest = sequence.deadline - self._seconds(0, _min_remaining_outputs(sequence))
        heappush(self._heap, (latest, sequence.arrival_index, sequence))

    def unreachable_error(self, sequence: Sequence, cached_tokens: int, now: float) -> Unreachable | None:
        """Return why a deadline cannot be met even by a start now; None if it can, or after the start."""
        if sequence.deadline is None or sequence.epoch or sequence.choice_index or sequence is self._probe:
            return None  # a further choice starts with the first one
        needed = self._seconds(len(sequence.token_ids) - cached_tokens, _min_remaining_outputs(sequence))
        left = sequence.deadline - now
        return _unreachable(sequence, needed, left) if needed > left else None

    def expired(self, now: float) -> Iterator[tuple[Sequence, ChairliftError]]:
        """Yield sequences past their deadline, and sequences not started whose deadline is unreachable."""
        while self._heap and self._heap[0][0] <= now:
            _, arrival, sequence = heappop(self._heap)
            deadline = sequence.deadline
            assert deadline is not None
            if sequence.status is SequenceStatus.FINISHED:
                continue
            if deadline <= now:
                yield sequence, RequestTimeout(sequence.request.timeout or 0.0)
            elif (
                sequence.epoch
                or sequence.choice_index
                or sequence.status is SequenceStatus.RUNNING
                or sequence is self._probe
            ):
                heappush(self._heap, (deadline, arrival, sequence))
            else:
                # The step cost model may have learnt since the sequence arrived.
                needed = self._seconds(0, _min_remaining_outputs(sequence))
                if needed > deadline - now:
                    yield sequence, _unreachable(sequence, needed, deadline - now)
                else:
                    heappush(self._heap, (deadline - needed, arrival, sequence))

    def _seconds(self, prompt_tokens: int, outputs: int) -> float:
        num_steps = ceil((outputs - 1) / self.tokens_per_step)
        return self._times.lower_bound_ms(prompt_tokens, self._max_chunk, num_steps) / 1e3

    def _prune(self) -> None:
        """Drop sequences that have finished."""
        self._heap = [entry for entry in self._heap if entry[2].status is not SequenceStatus.FINISHED]
        heapify(self._heap)
        # Each pruning is paid for by at least as many sequences that were added since the last one.
        self._prune_at = 2 * len(self._heap) + 64


def _unreachable(sequence: Sequence, needed: float, left: float) -> Unreachable:
    """Return the error of a sequence that needs more seconds than are left, or than its whole timeout."""
    timeout = sequence.request.timeout
    if timeout is not None and needed > timeout:
        return TimeoutTooShort(needed, timeout)
    return DeadlineUnreachable(needed, left)


def _min_remaining_outputs(sequence: Sequence) -> int:
    """Return the output tokens that the sequence must still produce before it can end."""
    params = sequence.request.params
    may_stop_early = sequence.stop_token_ids or params.stop or params.structured is not None
    min_outputs = params.min_tokens if may_stop_early else sequence.max_output_tokens
    return max(1, min_outputs - sequence.num_output_tokens)

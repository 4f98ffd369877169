"""Deadlines: whose time is up, and who cannot make it any more, so that nobody's prompt is read in vain."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from chairlift.core.errors import ChairliftError, DeadlineUnreachable, RequestTimeout
from chairlift.engine.scheduler.step_cost_model import StepCostModel
from chairlift.engine.sequence import Sequence, SequenceStatus

MAX_REJECTIONS_PER_ESTIMATE = 10
"""Requests refused in a row on the same knowledge; the next one is let in, so that what steps cost is seen again."""


class Deadlines:
    """Watches the sequences that have a timeout.

    What a request needs at least is its prompt beyond the cache, read alone, and a step for each output token that it
    cannot do without: all of them when nothing but the length can end it. That is a lower bound by the measured step
    times, with slack; the line before it and the neighbours on board come on top.
    """

    def __init__(self, times: StepCostModel, max_chunk: int) -> None:
        self._times = times
        self._max_chunk = max_chunk
        self._moments: list[tuple[float, int, Sequence]] = []
        self._tidy_at = 64
        self._refused = 0
        self._known = 0
        self._probe: Sequence | None = None

    def rejection(self, sequence: Sequence, cached_tokens: int, now: float) -> DeadlineUnreachable | None:
        """Say why a request is not let in; None when it is, also when it is the one that tries whether that is true."""
        error = self.unreachable_error(sequence, cached_tokens, now)
        if error is None:
            return None
        if self._known != self._times.prompt_steps:
            self._known, self._refused = self._times.prompt_steps, 0
        self._refused += 1
        if self._refused <= MAX_REJECTIONS_PER_ESTIMATE:
            return error
        self._probe, self._refused = sequence, 0
        return None

    def watch(self, sequence: Sequence) -> None:
        """Look after a sequence from now on, if it has a deadline."""
        if sequence.deadline is None:
            return
        if len(self._moments) >= self._tidy_at:
            self._prune()
        latest = sequence.deadline - self._seconds(0, _min_remaining_outputs(sequence))
        heappush(self._moments, (latest, sequence.arrival_index, sequence))

    def unreachable_error(self, sequence: Sequence, cached_tokens: int, now: float) -> DeadlineUnreachable | None:
        """Say why a sequence cannot make it, even if it rode at once; None when it can, or has ridden before."""
        if sequence.deadline is None or sequence.epoch or sequence.choice_index or sequence is self._probe:
            return None  # a further choice begins with its first
        needed = self._seconds(len(sequence.token_ids) - cached_tokens, _min_remaining_outputs(sequence))
        left = sequence.deadline - now
        return DeadlineUnreachable(needed, left) if needed > left else None

    def expired(self, now: float) -> Iterator[tuple[Sequence, ChairliftError]]:
        """Yield those whose time is up, and those who have not begun and cannot make it any more."""
        while self._moments and self._moments[0][0] <= now:
            _, arrival, sequence = heappop(self._moments)
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
                heappush(self._moments, (deadline, arrival, sequence))
            else:
                # More may be known of the steps than when it came.
                needed = self._seconds(0, _min_remaining_outputs(sequence))
                if needed > deadline - now:
                    yield sequence, DeadlineUnreachable(needed, deadline - now)
                else:
                    heappush(self._moments, (deadline - needed, arrival, sequence))

    def _seconds(self, prompt_tokens: int, outputs: int) -> float:
        return self._times.lower_bound_ms(prompt_tokens, self._max_chunk, outputs - 1) / 1e3

    def _prune(self) -> None:
        """Drop those that have ended."""
        self._moments = [entry for entry in self._moments if entry[2].status is not SequenceStatus.FINISHED]
        heapify(self._moments)
        self._tidy_at = 2 * len(self._moments) + 64


def _min_remaining_outputs(sequence: Sequence) -> int:
    """Output tokens, those that it has not yet, without which it cannot end."""
    params = sequence.request.params
    anywhere = sequence.stop_ids or params.stop or params.structured is not None
    certain = params.min_tokens if anywhere else sequence.max_output_tokens
    return max(1, certain - sequence.num_output_tokens)

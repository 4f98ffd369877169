"""SchedulerView: the requests of an engine's scheduler as RequestStates, for readers."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from chairlift.core.request import RequestPhase
from chairlift.engine.scheduler.scheduler import Scheduler
from chairlift.engine.sequence import Sequence
from chairlift.llm.transformers_compat.request_state import RequestState
from chairlift.llm.transformers_compat.request_status import RequestStatus

Inspect = Callable[[Callable[[Scheduler], Any]], Any]
"""Calls a function with the scheduler where that may be used; returns its result."""

_STATUS = {
    RequestPhase.PENDING: RequestStatus.PENDING,
    RequestPhase.DECODING: RequestStatus.DECODING,
    RequestPhase.FINISHED: RequestStatus.FINISHED,
    RequestPhase.FAILED: RequestStatus.FAILED,
    RequestPhase.CANCELLED: RequestStatus.CANCELLED,
}


class SchedulerView:
    """Reads a scheduler; the states that it returns are copies, whose change has no effect."""

    def __init__(self, inspect: Inspect, cancel: Callable[[str], None]) -> None:
        """Read and cancel through these functions."""
        self._inspect, self._cancel = inspect, cancel

    @property
    def active_requests(self) -> dict[str, RequestState]:
        """The requests that hold blocks, by id."""
        return self._states(lambda scheduler: scheduler.running.values())

    @property
    def waiting_requests(self) -> dict[str, RequestState]:
        """The requests that wait, by id, in the order in which they will start."""
        return self._states(lambda scheduler: scheduler.waiting)

    @property
    def waiting_requests_order(self) -> deque[str]:
        """The ids of the waiting requests in the order in which they will start."""
        return deque(self.waiting_requests)

    def has_pending_requests(self) -> bool:
        """Return whether a request is open."""
        return bool(self._inspect(lambda scheduler: bool(scheduler.sequence_groups)))

    def request_is_cancelled(self, request_id: str) -> bool:
        """Return whether a request is not open."""
        return bool(self._inspect(lambda scheduler: request_id not in scheduler.sequence_groups))

    def set_request_cancellation(self, request_id: str) -> None:
        """Cancel a request; does nothing for one that is not open."""
        self._cancel(request_id)

    def get_active_request_static_outputs(self, request_id: str) -> list[int]:
        """Return the output tokens of a request that holds blocks; none for another one."""
        state = self.active_requests.get(request_id)
        return [] if state is None else state.generated_tokens

    def _states(self, choose: Callable[[Scheduler], Iterable[Sequence]]) -> dict[str, RequestState]:
        states: dict[str, RequestState] = self._inspect(
            lambda scheduler: {sequence.request_id: state_of(sequence) for sequence in choose(scheduler)}
        )
        return states


def state_of(sequence: Sequence) -> RequestState:
    """Return the state of a sequence as it is now."""
    request = sequence.request
    state = RequestState(
        request.request_id, request.prompt_token_ids, max_new_tokens=request.params.max_tokens,
        eos_token_id=request.eos_token_ids,
    )  # fmt: skip
    state.generated_tokens = sequence.token_ids[sequence.num_prompt_tokens :]
    state.position_offset = sequence.num_computed_tokens
    state.tokens_to_process = sequence.token_ids[sequence.num_computed_tokens : sequence.num_scheduled_tokens]
    state.allocated_blocks = 0 if sequence.table is None else sequence.table.num_held
    state.num_cached_tokens = sequence.cached_tokens
    state.status = _STATUS.get(sequence.state, RequestStatus.PREFILLING)
    return state

"""SchedulerView: the requests of an engine as RequestStates."""

from chairlift.engine.config import SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.runner.fake import FakeRunner
from chairlift.llm.transformers_compat.request_status import RequestStatus
from chairlift.llm.transformers_compat.scheduler_view import SchedulerView
from support_engine import make_request, submit
from support_inline import FAKE


def test_states_are_copies_of_what_runs_and_waits() -> None:
    loop, cancelled = EngineLoop(FakeRunner(FAKE), SchedulerConfig(max_running_requests=1)), list[str]()
    loop.start()
    view = SchedulerView(lambda function: function(loop.scheduler), cancelled.append)
    assert not view.has_pending_requests() and view.active_requests == view.waiting_requests == {}
    for name in ("a", "b", "c"):
        submit(loop, make_request(name, 6, 5))
    loop.step()
    loop.step()
    assert set(view.active_requests) == {"a"} and list(view.waiting_requests_order) == ["b", "c"]
    state = view.active_requests["a"]
    assert (state.status, state.initial_tokens, state.max_new_tokens) == (
        RequestStatus.DECODING, [1, 2, 3, 4, 5, 6], 5
    )  # fmt: skip
    assert state.generated_tokens == view.get_active_request_static_outputs("a") and state.generated_len() == 2
    assert state.allocated_blocks == 2 and state.position_offset == 7
    state.generated_tokens.append(9)
    assert view.active_requests["a"].generated_len() == 2
    assert view.waiting_requests["b"].status is RequestStatus.PENDING
    assert view.get_active_request_static_outputs("b") == []
    view.set_request_cancellation("b")
    assert cancelled == ["b"] and not view.request_is_cancelled("b") and view.request_is_cancelled("d")
    assert view.has_pending_requests()

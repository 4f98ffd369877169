"""RequestTracker: each accepted request is in one place and has one last output."""

import queue
from typing import Any

import pytest

from chairlift.core.errors import DuplicateRequestId, EngineDead
from chairlift.engine.client.inline import InlineClient
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.runner.fake import FakeRunner
from chairlift.llm.transformers_compat.request_queue import WaitingRequest
from chairlift.llm.transformers_compat.request_status import RequestStatus
from chairlift.llm.transformers_compat.request_tracker import RequestTracker
from chairlift.llm.transformers_compat.settings import ManagerSettings
from support_inline import StepGate
from support_shares import for_each
from support_transformers_compat import FAKE, SLOW


def waiting(name: str, prompt: list[int] | None = None, count: Any = 3, **sampling: Any) -> WaitingRequest:
    return WaitingRequest(name, prompt or [1, 2], count, False, False, None, None, 0, sampling, 5)


def tracker(**options: Any) -> RequestTracker:
    return RequestTracker(ManagerSettings(sampling={"temperature": 0.0}, **options), ())


def engine(fake: Any = FAKE, hook: Any = None) -> InlineClient:
    return InlineClient(EngineLoop(FakeRunner(fake, hook=hook), SchedulerConfig()))


def last(requests: RequestTracker, name: str) -> Any:
    return requests.outputs.read(name, 20, lambda: requests.can_come(name))


def test_requests_wait_for_an_engine_then_run_in_order() -> None:
    requests = tracker()
    requests.add([waiting("a"), waiting("b")], 0)
    assert requests.queue.qsize() == 2 and not requests.open and not requests.can_come("a")
    client = engine()
    requests.start(client)
    assert [last(requests, name).status for name in ("b", "a")] == [RequestStatus.FINISHED] * 2
    assert not requests.open and requests.queue.empty() and requests.can_come(None)
    requests.end()
    client.close()
    assert not requests.can_come(None) and requests.outputs.empty()


def test_a_group_is_added_as_a_whole_or_not_at_all() -> None:
    requests = tracker(max_queue_size=3)
    requests.add([waiting("a")], 0)
    with pytest.raises(DuplicateRequestId):
        requests.add([waiting("b"), waiting("a")], 0)
    requests.add([waiting("c"), waiting("d")], 0)
    with pytest.raises(queue.Full):
        requests.add([waiting("e")], 0)
    assert [each.request_id for each in requests.queue.take_all()] == ["a", "c", "d"]


@for_each(
    ("request_", "message"),
    [
        (waiting("x", [999]), "token id 999"), (waiting("x", [1], 10**6), "max_new_tokens is 1000000"),
        (waiting("x", count=[]), "max_new_tokens must be an integer"), (waiting("x", top_p=-3), "top_p must be"),
        (waiting("x", top_pp=1), "did you mean 'top_p'"), (waiting("x" * 300), "request_id must have 1 to 256"),
    ],
)  # fmt: skip
def test_a_request_that_can_never_be_served_fails_alone_also_one_that_waited(request_: Any, message: str) -> None:
    requests = tracker()
    requests.add([request_, waiting("good")], 0)
    client = engine()
    requests.start(client)
    output = requests.outputs.get(timeout=20)
    assert output.status is RequestStatus.FAILED and message in output.error and output.finish_reason == "error"
    assert output.request_id == request_.request_id and output.lifespan[1] >= output.created_time
    assert last(requests, "good").status is RequestStatus.FINISHED
    client.close()


def test_cancelling_finds_a_request_wherever_it_is() -> None:
    requests, gate = tracker(), StepGate()
    requests.add([waiting("waits")], 0)
    requests.cancel(["waits", "unknown"])
    assert requests.outputs.get_nowait().status is RequestStatus.CANCELLED and requests.queue.empty()
    client = engine(hook=gate)
    requests.start(client)
    requests.add([waiting("runs"), waiting("goes on")], 0)
    requests.cancel(["runs", "runs"])
    gate.opened.set()
    output = last(requests, "runs")
    assert (output.status, output.error, output.finish_reason) == (
        RequestStatus.CANCELLED, "the request was cancelled", "abort"
    )  # fmt: skip
    assert last(requests, "goes on").status is RequestStatus.FINISHED
    requests.cancel(["runs"])
    assert requests.outputs.empty() and client.check_integrity() == []
    client.close()


def test_failing_the_open_requests_ends_them_in_the_engine_too() -> None:
    requests, client = tracker(), engine(SLOW)
    requests.start(client)
    requests.add([waiting("a", count=200)], 0)
    requests.fail_open(EngineDead("the manager was stopped"))
    output = requests.outputs.get(timeout=20)
    assert (output.status, output.error) == (RequestStatus.FAILED, "the manager was stopped")
    assert client.load().running_requests == 0 and requests.outputs.empty()
    requests.wait_until_none_is_open()
    client.close()


def test_a_refusal_and_a_dead_engine_are_errors() -> None:
    requests, client = tracker(), engine()
    requests.refusal = EngineDead("stopped")
    with pytest.raises(EngineDead, match="stopped"):
        requests.add([waiting("a")], 0)
    requests.refusal = None
    requests.start(client)
    client.close()
    with pytest.raises(EngineDead):
        requests.add([waiting("a")], 0)
    assert not requests.is_running and not requests.open


def test_new_ids_are_no_ids_of_waiting_requests_or_unread_outputs() -> None:
    requests, client = tracker(), engine()
    requests.add([waiting("req_0")], 0)
    assert requests.new_id() == "req_1"
    requests.add([waiting("req_2")], 0)
    requests.start(client)
    requests.wait_until_none_is_open()
    assert requests.new_id() == "req_3"
    client.close()

"""SendQueue sends messages in order to an engine; without one they wait, expire and are limited in number."""

from typing import Any

from chairlift.core.engine_output import FinishReason
from chairlift.core.errors import QueueFull, RequestTimeout
from chairlift.engine.ipc.in_flight_requests import InFlightRequest, InFlightRequests
from chairlift.engine.ipc.messages import Abort, RemoteCall, Submit, WatchSteps, decode_client_message, encode
from chairlift.engine.ipc.send_queue import SendQueue
from support_process import RecordingSink, make_request


class FakeConnection:
    def __init__(self, ready: bool = True) -> None:
        self.ready = ready
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(decode_client_message(message) if isinstance(message, bytes) else message)

    def names(self) -> list[str]:
        return [message.request.request_id if isinstance(message, Submit) else message for message in self.sent]


class Harness:
    """A send queue with its requests; submits by name."""

    def __init__(self) -> None:
        self.requests, self.outputs = InFlightRequests(), RecordingSink()
        self.send_queue = SendQueue(self.requests)

    def submit(self, name: str, timeout: float | None = None, since: float = 1e12) -> InFlightRequest:
        request = make_request(name, timeout=timeout)
        entry = InFlightRequest(request, self.outputs, encode(Submit(request)), since)
        self.requests.add(entry)
        self.send_queue.put(entry)
        return entry

    def post(self, connection: FakeConnection | None) -> None:
        self.send_queue.flush(connection)  # type: ignore[arg-type]


def test_messages_are_sent_in_the_order_of_put() -> None:
    harness, connection = Harness(), FakeConnection()
    harness.submit("a")
    harness.send_queue.put(RemoteCall(1, "load"))
    harness.submit("b")
    harness.post(connection)
    assert connection.names() == ["a", RemoteCall(1, "load"), "b"]
    harness.send_queue.put(Abort("a"))
    harness.post(connection)
    assert connection.sent[-1] == Abort("a") and harness.outputs.batches == []
    harness.send_queue.close()


def test_watching_is_sent_to_a_ready_engine_and_not_kept_for_a_later_one() -> None:
    harness, connection = Harness(), FakeConnection(ready=False)
    for target in (None, connection):
        harness.send_queue.put(WatchSteps(True))
        harness.post(target)
    connection.ready = True
    harness.post(connection)
    assert connection.sent == []
    for watching in (True, False, True):
        harness.send_queue.put(WatchSteps(watching))
    harness.post(connection)
    assert connection.sent == [WatchSteps(True), WatchSteps(False), WatchSteps(True)]
    harness.send_queue.close()


def test_messages_wait_for_an_engine_that_accepts_them() -> None:
    harness, connection = Harness(), FakeConnection(ready=False)
    harness.submit("a")
    harness.post(None)
    harness.submit("b")
    harness.post(connection)
    assert connection.sent == []
    connection.ready = True
    harness.post(connection)
    assert connection.names() == ["a", "b"]
    harness.post(connection)
    assert len(connection.sent) == 2
    harness.send_queue.close()


def test_a_request_that_waits_can_be_aborted_and_is_never_sent() -> None:
    harness, connection = Harness(), FakeConnection()
    harness.submit("a")
    harness.submit("b")
    harness.send_queue.put(Abort("a"))
    harness.send_queue.put(Abort("unknown"))
    harness.post(None)
    assert harness.outputs.end("a").finish_reason is FinishReason.ABORT
    harness.post(connection)
    assert connection.names() == ["b"]
    harness.send_queue.close()


def test_a_request_that_waits_too_long_ends() -> None:
    harness = Harness()
    harness.submit("late", timeout=5.0, since=-1e12)
    harness.submit("early", timeout=5.0)
    harness.post(None)
    assert type(harness.outputs.end("late").error) is RequestTimeout and "early" not in harness.outputs.ends
    harness.send_queue.close()


def test_a_request_that_ended_while_it_waited_is_not_sent() -> None:
    harness, connection = Harness(), FakeConnection()
    old = harness.submit("same")
    harness.requests.deliver([old.final_output(FinishReason.ABORT)])
    new = harness.submit("same")
    harness.post(connection)
    assert connection.names() == ["same"]
    assert new in harness.requests
    harness.send_queue.close()


def test_only_so_many_wait() -> None:
    harness, connection = Harness(), FakeConnection()
    harness.send_queue.limit = 2
    for name in "abc":
        harness.submit(name)
    harness.post(None)
    error = harness.outputs.end("c").error
    assert type(error) is QueueFull and error.details == {"waiting": 2, "limit": 2}
    harness.post(connection)
    for name in "defg":
        harness.submit(name)
    harness.post(connection)
    assert connection.names() == [*"abdefg"], "an engine counts for itself"
    harness.send_queue.close()

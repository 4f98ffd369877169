"""Letters are sent in order when there is an engine, and wait, age and are bounded while there is none."""

from typing import Any

from chairlift.core.errors import QueueFull, RequestTimeout
from chairlift.core.request import FinishReason
from chairlift.engine.ipc.messages import Abort, RemoteCall, Submit, WatchSteps, decode_client_message, encode
from chairlift.engine.ipc.open_requests import OpenRequest, OpenRequests
from chairlift.engine.ipc.send_queue import SendQueue
from support_process import News, make_request


class FakeLink:
    def __init__(self, ready: bool = True) -> None:
        self.ready = ready
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(decode_client_message(message) if isinstance(message, bytes) else message)

    def names(self) -> list[str]:
        return [letter.request.request_id if isinstance(letter, Submit) else letter for letter in self.sent]


class Desktop:
    """An outbox with its requests; submits by name."""

    def __init__(self) -> None:
        self.requests, self.news = OpenRequests(), News()
        self.outbox = SendQueue(self.requests)

    def submit(self, name: str, timeout: float | None = None, since: float = 1e12) -> OpenRequest:
        request = make_request(name, timeout=timeout)
        entry = OpenRequest(request, self.news, encode(Submit(request)), since)
        self.requests.add(entry)
        self.outbox.put(entry)
        return entry

    def post(self, link: FakeLink | None) -> None:
        self.outbox.flush(link)  # type: ignore[arg-type]


def test_letters_leave_in_the_order_in_which_they_came() -> None:
    desk, link = Desktop(), FakeLink()
    desk.submit("a")
    desk.outbox.put(RemoteCall(1, "load"))
    desk.submit("b")
    desk.post(link)
    assert link.names() == ["a", RemoteCall(1, "load"), "b"]
    desk.outbox.put(Abort("a"))
    desk.post(link)
    assert link.sent[-1] == Abort("a") and desk.news.batches == []
    desk.outbox.close()


def test_that_somebody_watches_is_told_to_an_engine_that_is_there_and_kept_for_none() -> None:
    desk, link = Desktop(), FakeLink(ready=False)
    for there in (None, link):
        desk.outbox.put(WatchSteps(True))
        desk.post(there)
    link.ready = True
    desk.post(link)
    assert link.sent == []
    for wanted in (True, False, True):
        desk.outbox.put(WatchSteps(wanted))
    desk.post(link)
    assert link.sent == [WatchSteps(True), WatchSteps(False), WatchSteps(True)]
    desk.outbox.close()


def test_letters_wait_for_an_engine_that_takes_them() -> None:
    desk, link = Desktop(), FakeLink(ready=False)
    desk.submit("a")
    desk.post(None)
    desk.submit("b")
    desk.post(link)
    assert link.sent == []
    link.ready = True
    desk.post(link)
    assert link.names() == ["a", "b"]
    desk.post(link)
    assert len(link.sent) == 2
    desk.outbox.close()


def test_a_request_that_waits_can_be_aborted_and_is_never_sent() -> None:
    desk, link = Desktop(), FakeLink()
    desk.submit("a")
    desk.submit("b")
    desk.outbox.put(Abort("a"))
    desk.outbox.put(Abort("nobody"))
    desk.post(None)
    assert desk.news.end("a").finish_reason is FinishReason.ABORT
    desk.post(link)
    assert link.names() == ["b"]
    desk.outbox.close()


def test_a_request_that_waits_too_long_ends() -> None:
    desk = Desktop()
    desk.submit("late", timeout=5.0, since=-1e12)
    desk.submit("early", timeout=5.0)
    desk.post(None)
    assert type(desk.news.end("late").error) is RequestTimeout and "early" not in desk.news.ends
    desk.outbox.close()


def test_a_request_that_ended_while_it_waited_is_not_sent() -> None:
    desk, link = Desktop(), FakeLink()
    old = desk.submit("same")
    desk.requests.deliver([old.final_output(FinishReason.ABORT)])
    new = desk.submit("same")
    desk.post(link)
    assert link.names() == ["same"]
    assert new in desk.requests
    desk.outbox.close()


def test_only_so_many_wait() -> None:
    desk, link = Desktop(), FakeLink()
    desk.outbox.limit = 2
    for name in "abc":
        desk.submit(name)
    desk.post(None)
    error = desk.news.end("c").error
    assert type(error) is QueueFull and error.details == {"waiting": 2, "limit": 2}
    desk.post(link)
    for name in "defg":
        desk.submit(name)
    desk.post(link)
    assert link.names() == [*"abdefg"], "an engine counts for itself"
    desk.outbox.close()

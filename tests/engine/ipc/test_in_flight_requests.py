"""InFlightRequests ends each request once, groups outputs by sink, and rejects requests after close."""

import pytest

from chairlift.core.engine_output import EngineOutput, FinishReason, Usage
from chairlift.core.errors import DuplicateRequestId, EngineDead
from chairlift.engine.ipc.in_flight_requests import InFlightRequest, InFlightRequests
from chairlift.engine.ipc.messages import Submit, decode_client_message, encode
from support_process import RecordingSink, make_request


def entry(name: str, sink: RecordingSink, since: float = 0.0, timeout: float | None = None) -> InFlightRequest:
    request = make_request(name, timeout=timeout)
    return InFlightRequest(request, sink, encode(Submit(request)), since)


def test_outputs_go_to_their_sink_all_of_a_step_at_once() -> None:
    requests, one, two = InFlightRequests(), RecordingSink(), RecordingSink()
    for name, sink in (("a", one), ("b", two), ("c", one)):
        requests.add(entry(name, sink))
    requests.deliver(
        [EngineOutput("a", (1,)), EngineOutput("b", (2,)), EngineOutput("c", (3,)), EngineOutput("unknown", (4,))]
    )
    assert one.batches == [[EngineOutput("a", (1,)), EngineOutput("c", (3,))]] and two.batches == [
        [EngineOutput("b", (2,))]
    ]


def test_nothing_comes_after_the_last_output() -> None:
    requests, sink = InFlightRequests(), RecordingSink()
    requests.add(entry("a", sink))
    last = EngineOutput("a", (1,), finish_reason=FinishReason.STOP, usage=Usage(1, 1, 0))
    requests.deliver([last])
    requests.deliver([last, EngineOutput("a", (2,))])
    requests.end(EngineDead("dead"))
    assert sink.batches == [[last]]


def test_an_id_is_taken_until_its_request_ends() -> None:
    requests, sink = InFlightRequests(), RecordingSink()
    first = entry("a", sink)
    requests.add(first)
    with pytest.raises(DuplicateRequestId):
        requests.add(entry("a", sink))
    assert requests.get("a") is first and first in requests
    requests.end(EngineDead("dead"))
    second = entry("a", sink)
    requests.add(second)
    assert second in requests and first not in requests, "the old one is not the new one of the same id"


def test_an_end_has_its_error_and_close_takes_no_more() -> None:
    requests, sink = InFlightRequests(), RecordingSink()
    requests.add(entry("a", sink))
    requests.add(entry("b", sink))
    dead = EngineDead("dead")
    requests.close(dead)
    expected = [EngineOutput(name, finish_reason=FinishReason.ERROR, error=dead, usage=Usage(3, 0, 0)) for name in "ab"]
    assert sink.batches == [expected]
    with pytest.raises(EngineDead):
        requests.add(entry("c", sink))


def test_a_sink_that_raises_keeps_nothing_from_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def bad(outputs: list[EngineOutput]) -> None:
        raise RuntimeError("bad sink")

    requests, sink = InFlightRequests(), RecordingSink()
    requests.add(InFlightRequest(make_request("bad"), bad, b"", 0.0))
    requests.add(entry("good", sink))
    requests.deliver([EngineOutput("bad"), EngineOutput("good", (1,))])
    assert sink.batches == [[EngineOutput("good", (1,))]] and "bad sink" in caplog.text


def test_waiting_counts_against_a_requests_own_timeout() -> None:
    waited = entry("a", RecordingSink(), since=10.0, timeout=4.0)
    assert waited.to_frame(now=13.0) == waited.frame, "it did not wait"
    waited.has_waited = True
    message = decode_client_message(waited.to_frame(now=13.0))
    assert isinstance(message, Submit) and message.request.timeout == 1.0
    assert not waited.is_expired(13.9) and waited.is_expired(14.0)
    message = decode_client_message(waited.to_frame(now=20.0))
    assert isinstance(message, Submit) and message.request.timeout == 1e-6


def test_without_a_timeout_nothing_is_written_again() -> None:
    waited = entry("a", RecordingSink())
    waited.has_waited = True
    assert waited.to_frame(1e9) is waited.frame and not waited.is_expired(1e9)

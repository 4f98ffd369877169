"""PendingCalls completes a call by its reply, an error, or the end of the engine; late replies are dropped."""

import pytest

from chairlift.core.errors import EngineDead, InvalidRequest
from chairlift.engine.ipc.messages import RemoteReply, encode_reply
from chairlift.engine.ipc.pending_calls import PendingCalls


def test_replies_complete_their_calls_in_any_order() -> None:
    calls = PendingCalls()
    (first, first_future), (second, second_future) = calls.start("check_integrity"), calls.start("flush_cache")
    calls.complete(encode_reply(second.number, 7))
    calls.complete(encode_reply(first.number, ["a"]))
    assert (first_future.result(0), second_future.result(0)) == (["a"], 7)


def test_a_reply_can_be_an_error() -> None:
    calls = PendingCalls()
    message, future = calls.start("load")
    calls.complete(encode_reply(message.number, InvalidRequest("no")))
    with pytest.raises(InvalidRequest):
        future.result(0)


def test_a_reply_that_cannot_be_decoded_is_engine_dead() -> None:
    calls = PendingCalls()
    message, future = calls.start("load")
    calls.complete(RemoteReply(message.number, b"\xc1"))
    with pytest.raises(EngineDead, match="cannot be read"):
        future.result(0)


def test_a_reply_without_a_pending_call_is_dropped() -> None:
    calls = PendingCalls()
    message, future = calls.start("flush_cache")
    calls.forget(message.number)
    calls.complete(encode_reply(message.number, 1))
    calls.complete(encode_reply(99, 1))
    assert not future.done()


def test_an_engine_failure_ends_pending_calls_and_close_takes_no_more() -> None:
    calls = PendingCalls()
    _, future = calls.start("load")
    calls.fail_all(EngineDead("dead"))
    with pytest.raises(EngineDead):
        future.result(0)
    calls.start("load")
    calls.close(EngineDead("for good"))
    with pytest.raises(EngineDead, match="for good"):
        calls.start("load")

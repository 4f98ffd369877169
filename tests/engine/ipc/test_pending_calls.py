"""PendingCalls completes a call by its reply, an error, or the end of the engine; late replies are dropped."""

import pytest

from chairlift.core.errors import EngineDead, InvalidRequest
from chairlift.engine.ipc.messages import RemoteReply, answer
from chairlift.engine.ipc.pending_calls import PendingCalls


def test_answers_find_their_questions_in_any_order() -> None:
    questions = PendingCalls()
    (first, one), (second, two) = questions.start("check_integrity"), questions.start("flush_cache")
    questions.complete(answer(second.number, 7))
    questions.complete(answer(first.number, ["a"]))
    assert (one.result(0), two.result(0)) == (["a"], 7)


def test_an_answer_can_be_an_error() -> None:
    questions = PendingCalls()
    message, future = questions.start("load")
    questions.complete(answer(message.number, InvalidRequest("no")))
    with pytest.raises(InvalidRequest):
        future.result(0)


def test_an_answer_that_cannot_be_read_is_engine_dead() -> None:
    questions = PendingCalls()
    message, future = questions.start("load")
    questions.complete(RemoteReply(message.number, b"\xc1"))
    with pytest.raises(EngineDead, match="cannot be read"):
        future.result(0)


def test_a_reply_without_a_pending_call_is_dropped() -> None:
    questions = PendingCalls()
    message, future = questions.start("flush_cache")
    questions.forget(message.number)
    questions.complete(answer(message.number, 1))
    questions.complete(answer(99, 1))
    assert not future.done()


def test_death_ends_open_questions_and_close_takes_no_more() -> None:
    questions = PendingCalls()
    _, future = questions.start("load")
    questions.fail_all(EngineDead("dead"))
    with pytest.raises(EngineDead):
        future.result(0)
    questions.start("load")
    questions.close(EngineDead("for good"))
    with pytest.raises(EngineDead, match="for good"):
        questions.start("load")

"""A question ends by its answer, by an error, or by the engine's death; late answers are dropped."""

import pytest

from chairlift.core.errors import EngineDead, InvalidRequest
from chairlift.engine.ipc.messages import Answer, answer
from chairlift.engine.ipc.pending_calls import Questions


def test_answers_find_their_questions_in_any_order() -> None:
    questions = Questions()
    (first, one), (second, two) = questions.ask("validate"), questions.ask("flush_cache")
    questions.answered(answer(second.number, 7))
    questions.answered(answer(first.number, ["a"]))
    assert (one.result(0), two.result(0)) == (["a"], 7)


def test_an_answer_can_be_an_error() -> None:
    questions = Questions()
    message, future = questions.ask("load")
    questions.answered(answer(message.number, InvalidRequest("no")))
    with pytest.raises(InvalidRequest):
        future.result(0)


def test_an_answer_that_cannot_be_read_is_engine_dead() -> None:
    questions = Questions()
    message, future = questions.ask("load")
    questions.answered(Answer(message.number, b"\xc1"))
    with pytest.raises(EngineDead, match="cannot be read"):
        future.result(0)


def test_an_answer_that_nobody_waits_for_is_dropped() -> None:
    questions = Questions()
    message, future = questions.ask("flush_cache")
    questions.forget(message.number)
    questions.answered(answer(message.number, 1))
    questions.answered(answer(99, 1))
    assert not future.done()


def test_death_ends_open_questions_and_close_takes_no_more() -> None:
    questions = Questions()
    _, future = questions.ask("load")
    questions.end(EngineDead("dead"))
    with pytest.raises(EngineDead):
        future.result(0)
    questions.ask("load")
    questions.close(EngineDead("for good"))
    with pytest.raises(EngineDead, match="for good"):
        questions.ask("load")

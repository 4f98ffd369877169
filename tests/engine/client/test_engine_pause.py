"""EngineHold: a held thread waits for its release; closing a client ends its pause, and it may be closed twice."""

import threading

import pytest

from chairlift.core.engine_output import FinishReason
from chairlift.core.errors import EngineDead
from chairlift.engine.client.engine_pause import EngineHold
from chairlift.engine.runner.fake import FakeRunner
from support_engine import RequestSink, make_request
from support_inline import FAKE, WAIT_SECONDS, start_client


def test_a_held_thread_goes_on_at_the_release_and_not_before() -> None:
    hold, events = EngineHold(), []

    def engine() -> None:
        hold.run()
        events.append("went on")

    thread = threading.Thread(target=engine)
    thread.start()
    assert hold.wait_until_held(thread.is_alive)
    events.append("held")
    hold.release()
    thread.join(WAIT_SECONDS)
    assert events == ["held", "went on"]


def test_a_thread_that_has_ended_is_never_held() -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    assert not EngineHold().wait_until_held(thread.is_alive)


def test_a_thread_that_ended_after_it_was_held_counts_as_held() -> None:
    hold = EngineHold()
    hold.release()
    thread = threading.Thread(target=hold.run)
    thread.start()
    thread.join(WAIT_SECONDS)
    assert hold.wait_until_held(thread.is_alive)


def test_a_closed_client_can_be_closed_again() -> None:
    client = start_client()
    client.close()
    client.close()


def test_closing_a_client_ends_its_pause_without_a_step_and_a_closed_one_cannot_pause() -> None:
    steps: list[int] = []
    client, sink = start_client(FakeRunner(FAKE, hook=lambda plan, stage: steps.append(plan.step_id))), RequestSink()
    client.submit(make_request("a", 9, 150), sink)
    with client.paused():
        num_steps = len(steps)
        client.close()
        assert len(steps) == num_steps and sink.wait().finish_reason is FinishReason.ERROR
    with pytest.raises(EngineDead), client.paused():
        pass

"""inspect: the loop of a client can be read while it runs, while it is held, and after its end."""

import threading

import pytest

from chairlift.core.engine_output import EngineOutput
from chairlift.core.errors import ForwardFailed
from chairlift.engine.client.engine_thread_calls import fail_all, inspect
from chairlift.engine.client.inline import InlineClient
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.runner.fake import FakeRunner
from support_engine import make_request
from support_inline import FAKE, WAIT_SECONDS, StepGate, start_client


def thread_of(_: EngineLoop) -> threading.Thread:
    return threading.current_thread()


def test_a_function_runs_in_the_engine_thread_also_while_that_is_held() -> None:
    client = start_client()
    assert inspect(client, thread_of) is client.thread
    with client.paused():
        assert inspect(client, thread_of) is client.thread
        assert inspect(client, lambda loop: loop.is_idle)
    assert client.holds == [] and inspect(client, thread_of) is client.thread
    client.close()


def test_a_function_that_was_posted_before_a_pause_and_one_of_another_thread_are_answered() -> None:
    client, answers = start_client(), []
    with client.paused():
        others = [
            threading.Thread(target=lambda: answers.append(inspect(client, lambda loop: loop.info.num_blocks)))
            for _ in range(4)
        ]
        for other in others:
            other.start()
        for other in others:
            other.join(WAIT_SECONDS)
        assert answers == [FAKE.num_blocks] * 4
    client.close()


def test_a_closed_client_is_read_in_the_calling_thread() -> None:
    client = start_client()
    client.close()
    assert inspect(client, thread_of) is threading.current_thread()
    assert inspect(client, lambda loop: loop.scheduler.check_integrity()) == []


def test_an_error_of_the_function_is_the_callers() -> None:
    client = start_client()

    def fail(_: EngineLoop) -> None:
        raise ZeroDivisionError("a debugger's own")

    with pytest.raises(ZeroDivisionError, match="own"):
        inspect(client, fail)
    assert client.fatal_error is None and client.check_integrity() == []
    client.close()


def test_fail_all_ends_running_and_waiting_requests() -> None:
    gate, outputs = StepGate(), list[EngineOutput]()
    client: InlineClient = start_client(FakeRunner(FAKE, hook=gate), max_running_requests=1)
    for name in ("a", "b"):
        client.submit(make_request(name, 3, 20), outputs.extend)
    assert gate.entered.wait(WAIT_SECONDS)
    failing = threading.Thread(target=fail_all, args=(client, ForwardFailed("all of them")))
    failing.start()
    gate.opened.set()
    failing.join(WAIT_SECONDS)
    errors = {each.request_id: str(each.error) for each in outputs if each.is_final}
    assert set(errors) == {"a", "b"} and all("all of them" in error for error in errors.values())
    assert client.cache_state()["allocated_blocks"] == 0 and client.check_integrity() == []
    client.close()

"""InlineClient: every accepted request gets one final output, also on failure; an idle engine uses no CPU time."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chairlift.core.engine_output import EngineOutput, FinishReason
from chairlift.core.errors import ConfigError, DuplicateRequestId, EngineDead, QueueFull, TokenOutOfRange
from chairlift.core.load_report import ReplicaState
from chairlift.core.request import GenerateRequest
from chairlift.engine.client import inline
from chairlift.engine.client.inline import InlineClient
from chairlift.engine.runner.fake import FakeRunner
from chairlift.engine.runner.fake_model import expected_tokens
from chairlift.engine.step_plan import StepPlan
from chairlift.engine.step_stats import StepStats
from support_engine import RequestSink, make_request
from support_inline import FAKE, WAIT_SECONDS, StepGate, start_client
from support_process import wait_until


def test_a_request_gets_its_tokens_and_one_last_output(client: InlineClient) -> None:
    sink, request = RequestSink(), make_request("a", 9, 7)
    client.submit(request, sink)
    final = sink.wait()
    assert sink.tokens == expected_tokens(request.prompt_token_ids, request.params, FAKE)
    assert len(sink.finals) == 1 and final.finish_reason is FinishReason.LENGTH
    assert client.check_integrity() == []


def test_requests_from_many_threads_all_end(client: InlineClient) -> None:
    sinks = [RequestSink() for _ in range(24)]

    def submit(numbers: range) -> None:
        for number in numbers:
            client.submit(make_request(str(number), [number, 5, 6], 1 + number % 9), sinks[number])

    threads = [threading.Thread(target=submit, args=(range(first, 24, 4),)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, sink in enumerate(sinks):
        assert sink.wait().finish_reason is FinishReason.LENGTH
        assert len(sink.tokens) == 1 + number % 9
    assert client.check_integrity() == [] and client.cache_state()["allocated_blocks"] == 0


def test_one_sink_gets_one_list_a_step(gated_client: InlineClient, gate: StepGate) -> None:
    client = start_client(FakeRunner(FAKE, hook=gate))
    sink = RequestSink()
    client.submit(make_request("first", [9], 1), RequestSink())
    assert gate.entered.wait(WAIT_SECONDS)
    for number in range(3):
        client.submit(make_request(str(number), [number], 4), sink)
    gate.opened.set()
    sink.wait()
    client.close()
    assert [sorted(output.request_id for output in call) for call in sink.calls] == [["0", "1", "2"]] * 4


def test_what_can_never_be_served_raises_in_the_callers_thread(client: InlineClient) -> None:
    """Pitfall 17. The request is not queued."""
    sink = RequestSink()
    with pytest.raises(TokenOutOfRange):
        client.submit(make_request("a", [200]), sink)
    assert client.scheduler_state()["waiting_requests"] == 0 and sink.calls == []


def test_a_duplicate_id_raises_and_the_first_one_goes_on(gated_client: InlineClient, gate: StepGate) -> None:
    """Pitfall 17."""
    sink = RequestSink()
    gated_client.submit(make_request("a", 3), sink)
    with pytest.raises(DuplicateRequestId):
        gated_client.submit(make_request("a", 4), RequestSink())
    gate.opened.set()
    assert sink.wait().finish_reason is FinishReason.LENGTH
    again = RequestSink()
    gated_client.submit(make_request("a", 4), again)
    assert again.wait().finish_reason is FinishReason.LENGTH


def test_a_full_queue_comes_as_the_last_output(gated_client: InlineClient, gate: StepGate) -> None:
    sinks = [RequestSink() for _ in range(4)]
    gated_client.submit(make_request("0", 3), sinks[0])
    assert gate.entered.wait(WAIT_SECONDS)
    for number in (1, 2, 3):
        gated_client.submit(make_request(str(number), 3), sinks[number])
    gate.opened.set()
    finals = [sink.wait() for sink in sinks]
    assert [isinstance(final.error, QueueFull) for final in finals] == [False, False, True, True]


def test_an_abort_ends_the_request_through_its_sink(gated_client: InlineClient, gate: StepGate) -> None:
    sink = RequestSink()
    gated_client.submit(make_request("a", 3, 100), sink)
    assert gate.entered.wait(WAIT_SECONDS)
    gated_client.abort("a")
    gated_client.abort("unknown")
    gate.opened.set()
    assert sink.wait().finish_reason is FinishReason.ABORT
    assert gated_client.check_integrity() == [] and gated_client.cache_state()["allocated_blocks"] == 0


def test_closing_ends_all_requests_and_frees_the_runner(gate: StepGate) -> None:
    runner, sink = FakeRunner(FAKE, hook=gate), RequestSink()
    client = start_client(runner)
    client.submit(make_request("a", 3, 100), sink)
    assert gate.entered.wait(WAIT_SECONDS)
    gate.opened.set()
    client.close()
    client.close()
    final = sink.wait()
    assert runner.stopped and (final.error is None or isinstance(final.error, EngineDead)) and len(sink.finals) == 1
    with pytest.raises(EngineDead):
        client.submit(make_request("b", 3), RequestSink())
    with pytest.raises(EngineDead):
        client.check_integrity()
    client.abort("a")
    assert client.load().state is ReplicaState.STOPPED


def test_an_engine_that_dies_ends_all_requests_with_an_error() -> None:
    def hook(plan: StepPlan, stage: str) -> None:
        raise EngineDead("the device is gone")

    client = start_client(FakeRunner(FAKE, hook=hook))
    sink = RequestSink()
    client.submit(make_request("a", 3), sink)
    final = sink.wait()
    assert isinstance(final.error, EngineDead) and "the device is gone" in final.error.message
    assert final.usage is not None and final.usage.prompt_tokens == 3
    client.thread.join(WAIT_SECONDS)
    with pytest.raises(EngineDead):
        client.submit(make_request("b", 3), RequestSink())
    assert client.load().state is ReplicaState.DEAD
    client.close()


def test_the_state_says_where_the_engine_is_in_its_life_and_nothing_is_started_again() -> None:
    def hook(plan: StepPlan, stage: str) -> None:
        raise EngineDead("the device is gone")

    client, sink = start_client(FakeRunner(FAKE, hook=hook)), RequestSink()
    assert (client.state, client.restarts) == (ReplicaState.READY, 0)
    client.submit(make_request("a", 3), sink)
    sink.wait()
    client.thread.join(WAIT_SECONDS)
    assert (client.state, client.restarts) == (ReplicaState.DEAD, 0)
    client.close()
    assert (client.state, client.restarts) == (ReplicaState.STOPPED, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="a thread has no priority of its own on this system")
def test_an_engine_goes_on_in_new_threads_with_the_priority_of_the_caller_or_a_lower_one(client: InlineClient) -> None:
    own, threads, renewed = os.getpriority(os.PRIO_PROCESS, 0), [client.thread], []
    client.loop.renew_threads = lambda: renewed.append(threading.get_native_id())  # type: ignore[method-assign]
    sink, request = RequestSink(), make_request("a", 9, 200)
    client.submit(request, sink)
    for niceness in (0, 3, 0, 0):
        client.move_to_new_thread(niceness)
        wait_until(lambda: client.thread not in threads)
        threads.append(client.thread)
        native_id = client.run_command(threading.get_native_id)
        assert os.getpriority(os.PRIO_PROCESS, native_id) == min(19, own + niceness) and renewed[-1] == native_id
    wait_until(lambda: [thread.is_alive() for thread in threads] == [False] * 4 + [True])
    assert len(renewed) == 4 and sink.wait().finish_reason is FinishReason.LENGTH
    assert sink.tokens == expected_tokens(request.prompt_token_ids, request.params, FAKE)


def test_an_engine_moves_three_times_at_once_and_commands_in_between_run_once(client: InlineClient) -> None:
    first, ran = client.thread, list[int]()
    with client.paused():
        for _ in range(3):
            client.move_to_new_thread(0)
        moving = [thread for thread in threading.enumerate() if thread.name == "chairlift-engine"]
        wait_until(lambda: len(client._commands) >= 6)
        for number in range(3):
            client.post(lambda number=number: ran.append(number))
    wait_until(lambda: ran == [0, 1, 2])
    assert client.thread in moving and client.thread is not first
    wait_until(lambda: not any(thread.is_alive() for thread in {first, *moving} - {client.thread}))


@pytest.mark.parametrize("when", ["before", "while it leaves", "in the new thread"])
def test_an_engine_that_moves_can_be_closed(gated_client: InlineClient, gate: StepGate, when: str) -> None:
    client, sink, closing = gated_client, RequestSink(), threading.Thread(target=gated_client.close)
    client.submit(make_request("a", 3), sink)
    assert gate.entered.wait(WAIT_SECONDS)
    first, leave, renew = client.thread, client._leave, client.loop.renew_threads

    def close_then(function: Callable[..., None], *arguments: Any) -> None:
        closing.start()
        wait_until(lambda: client._closing)
        function(*arguments)

    if when == "while it leaves":
        client._leave = lambda hand_over: close_then(leave, hand_over)  # type: ignore[method-assign]
    elif when == "in the new thread":
        client.loop.renew_threads = lambda: close_then(renew)  # type: ignore[method-assign]
    else:
        closing.start()
        wait_until(lambda: client._closing)
    client.move_to_new_thread(0)
    gate.opened.set()
    wait_until(lambda: closing.ident is not None)
    closing.join(WAIT_SECONDS)
    assert not closing.is_alive() and not client.thread.is_alive() and not first.is_alive()
    assert (client.thread is first) == (when == "before") and sink.wait() is not None
    client.move_to_new_thread(3)
    assert client.state is ReplicaState.STOPPED


def test_an_engine_whose_thread_cannot_be_started_does_not_stop_the_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    clients: list[InlineClient] = []
    monkeypatch.setattr(inline, "close_at_exit", clients.append)
    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(RuntimeError, match="new thread"):
        start_client(FakeRunner(FAKE))
    assert clients[0]._has_ended.is_set()


def test_threads_that_cannot_be_started_leave_the_engine_as_it_was(
    client: InlineClient, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    def fail() -> None:
        raise RuntimeError("cannot start 2 threads")

    client.loop.renew_threads = fail  # type: ignore[method-assign]
    client.move_to_new_thread(0)
    sink = RequestSink()
    client.submit(make_request("a", 3), sink)
    assert sink.wait().finish_reason is FinishReason.LENGTH
    wait_until(lambda: "keep their priority: cannot start 2 threads" in caplog.text)


def test_the_state_is_returned_at_once_during_a_step(gated_client: InlineClient, gate: StepGate) -> None:
    gated_client.submit(make_request("a", 3), RequestSink())
    assert gate.entered.wait(WAIT_SECONDS)
    assert gated_client.state is ReplicaState.READY
    gate.opened.set()
    gated_client.close()
    assert gated_client.state is ReplicaState.STOPPED


def test_a_bug_in_the_scheduler_ends_all_requests_without_its_details(monkeypatch: pytest.MonkeyPatch) -> None:
    client = start_client()

    def fail(now: float) -> None:
        raise AssertionError("internal detail")

    monkeypatch.setattr(client.loop.scheduler, "schedule", fail)
    sink = RequestSink()
    client.submit(make_request("a", 3), sink)
    final = sink.wait()
    assert isinstance(final.error, EngineDead) and "internal detail" not in final.error.message
    client.close()


@pytest.mark.parametrize("error", [ConfigError("no such device"), SystemExit(3)])
def test_a_runner_that_does_not_start_raises_at_once(error: BaseException) -> None:
    class Broken(FakeRunner):
        def start(self) -> Any:
            raise error

    runner = Broken(FAKE)
    with pytest.raises(type(error)):
        start_client(runner)
    assert runner.stopped


def test_a_loop_that_cannot_be_built_stops_the_runner_it_started() -> None:
    runner = FakeRunner(FAKE)
    with pytest.raises(ConfigError, match="unknown scheduling_policy"):
        start_client(runner, scheduling_policy="lifo", overlap=True)
    assert runner.stopped
    assert not [thread for thread in threading.enumerate() if thread.name == "chairlift-runner" and thread.is_alive()]


def test_a_sink_that_raises_affects_no_other_request(client: InlineClient) -> None:
    def bad(outputs: list[EngineOutput]) -> None:
        raise RuntimeError("a broken sink")

    sink = RequestSink()
    client.submit(make_request("a", [1], 5), bad)
    client.submit(make_request("b", [2], 5), sink)
    assert sink.wait().finish_reason is FinishReason.LENGTH


def test_a_sink_may_submit_ask_and_close(client: InlineClient) -> None:
    """A sink runs in the engine thread, which must not wait for itself."""
    second = RequestSink()

    def submit_next(outputs: list[EngineOutput]) -> None:
        if outputs[-1].finish_reason is not None:
            assert client.check_integrity() == []
            client.submit(make_request("a", [2], 2), close_at_end)

    def close_at_end(outputs: list[EngineOutput]) -> None:
        second(outputs)
        if second.first_done.is_set():
            client.close()

    client.submit(make_request("a", [1], 2), submit_next)
    assert second.wait().finish_reason is FinishReason.LENGTH
    client.thread.join(WAIT_SECONDS)
    assert not client.thread.is_alive()


def test_every_step_is_shown_before_its_outputs_until_it_is_enough(client: InlineClient) -> None:
    events: list[Any] = []
    sink = RequestSink()
    client.watch_steps(events.append)

    def recording_sink(outputs: list[EngineOutput]) -> None:
        events.append(outputs)
        sink(outputs)

    client.submit(make_request("a", 9, 7), recording_sink)
    sink.wait()
    steps = [event for event in events if isinstance(event, StepStats)]
    assert [stats.step_id for stats in steps] == list(range(7))
    assert all(isinstance(first, StepStats) and isinstance(then, list) for first, then in in_pairs(events))
    client.watch_steps(None)
    again = RequestSink()
    client.submit(make_request("b", 9, 7), again)
    again.wait()
    assert len([event for event in events if isinstance(event, StepStats)]) == 7


def in_pairs(items: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(items[::2], items[1::2], strict=True)


def test_flushing_evicts_blocks_without_references(client: InlineClient) -> None:
    sink = RequestSink()
    client.submit(make_request("a", 9, 1), sink)
    sink.wait()
    assert client.flush_cache() == 2 and client.flush_cache() == 0
    assert client.load().free_blocks == 64


def test_an_idle_engine_sleeps(client: InlineClient) -> None:
    """Pitfall 18: while no request is open, the thread uses no CPU time and the loop runs no step."""
    sink = RequestSink()
    client.submit(make_request("a", 3), sink)
    sink.wait()
    assert client.check_integrity() == []
    clock = time.pthread_getcpuclockid(client.thread.ident or 0)
    num_steps = client.loop.scheduler.counters.steps
    used_ns = []
    for _ in range(30):  # the thread may not be asleep yet
        waits = count_waits(client)
        before = time.clock_gettime_ns(clock)
        time.sleep(0.1)
        used_ns.append(time.clock_gettime_ns(clock) - before)
        if not used_ns[-1]:
            break
    assert used_ns[-1] == 0, f"an idle engine used the CPU: {used_ns} ns"
    assert client.loop.scheduler.counters.steps == num_steps and waits == []


def count_waits(client: InlineClient) -> list[float | None]:
    """Record the timeout of each wait of the engine thread from now on."""
    waits: list[float | None] = []
    wait = client._awake.wait

    def record_wait(timeout: float | None = None) -> bool:
        waits.append(timeout)
        return wait(timeout)

    client._awake.wait = record_wait  # type: ignore[method-assign]
    return waits


@pytest.mark.parametrize("overlap", [False, True])
def test_an_engine_checks_its_integrity_when_it_falls_idle(overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pitfall 18: free + cached + held == total, checked without a request."""
    client = start_client(overlap=overlap)
    checked = threading.Event()
    check = client.loop.check_integrity

    def recorded_check() -> list[str]:
        checked.set()
        return check()

    monkeypatch.setattr(client.loop, "check_integrity", recorded_check)
    sink = RequestSink()
    client.submit(make_request("a", 3), sink)
    sink.wait()
    assert checked.wait(WAIT_SECONDS)
    client.close()


def test_a_call_is_served_between_two_steps(gated_client: InlineClient, gate: StepGate) -> None:
    sink = RequestSink()
    gated_client.submit(make_request("a", 3, 2), sink)
    assert gate.entered.wait(WAIT_SECONDS) and gated_client.step_started_at is not None
    replies: list[object] = []
    caller = threading.Thread(target=lambda: replies.append(gated_client.scheduler_state()["active_requests"]))
    caller.start()
    gate.opened.set()
    caller.join(WAIT_SECONDS)
    assert len(replies) == 1
    sink.wait()


def test_a_step_or_a_warm_up_that_takes_too_long_is_a_hang(gated_client: InlineClient, gate: StepGate) -> None:
    client, sink = gated_client, RequestSink()
    client.submit(make_request("a", 3, 2), sink)
    assert gate.entered.wait(WAIT_SECONDS) and client.loop.step_started_at is not None and not client.is_hanging
    client.loop.step_started_at = time.monotonic() - 81.0
    assert not client.is_hanging, "a prompt may take minutes"
    client.loop.step_started_at -= 40.0
    assert client.is_hanging
    gate.opened.set()
    sink.wait()
    wait_until(lambda: client.step_started_at is None, WAIT_SECONDS)
    assert not client.is_hanging
    client.loop.warmup_started_at = time.monotonic() - 1700.0
    assert not client.is_hanging
    client.loop.warmup_started_at -= 101.0
    assert client.is_hanging
    client.loop.warmup_started_at = None


def test_requests_are_rejected_by_the_limits_the_client_shows(client: InlineClient) -> None:
    request: GenerateRequest = make_request("a", 3)
    assert client.info.num_blocks == client.limits.num_blocks == 64
    assert client.limits.max_output_tokens(len(request.prompt_token_ids)) == 64 * 4 + 1 - 3


def test_a_runner_that_fails_for_good_is_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """It reports its failure between two steps, and the step that begins meanwhile raises it, too."""
    callbacks: list[Callable[[EngineDead], None]] = []

    class Fails(FakeRunner):
        def on_failure(self, callback: Callable[[EngineDead], None]) -> None:
            callbacks.append(callback)

    def hook(plan: StepPlan, stage: str) -> None:
        error = EngineDead("rank 1 is lost")
        callbacks[0](error)
        raise error

    client, sink = start_client(Fails(FAKE, hook=hook)), RequestSink()
    client.submit(make_request("a", 9, 7), sink)
    assert str(sink.wait().error) == "the engine failed: rank 1 is lost"
    client.close()
    (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert record.getMessage() == "the engine died: rank 1 is lost" and not record.exc_info

"""InlineClient: every accepted request gets one final output, also on failure; an idle engine takes no CPU time."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from chairlift.core.errors import ConfigError, DuplicateRequestId, EngineDead, QueueFull, TokenOutOfRange
from chairlift.core.load_report import ReplicaState
from chairlift.core.request import EngineOutput, FinishReason, GenerateRequest
from chairlift.engine.client.inline import InlineClient
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.runner.fake import FakeConfig, FakeRunner, expected_tokens
from chairlift.engine.stats import StepStats
from chairlift.engine.step_plan import StepPlan
from support_engine import Box, ask

FAKE = FakeConfig(vocab_size=200, num_blocks=64, block_size=4)
SECONDS = 30


class Gate:
    """A hook that holds steps back until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.entered = threading.Event()

    def __call__(self, plan: StepPlan, stage: str) -> None:
        self.entered.set()
        assert self.opened.wait(SECONDS), "the gate was never opened"


def start(runner: FakeRunner | None = None, **options: Any) -> InlineClient:
    return InlineClient(EngineLoop(runner or FakeRunner(FAKE), SchedulerConfig(**options)))


@pytest.fixture
def client() -> Iterator[InlineClient]:
    client = start()
    yield client
    client.close()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def gated(gate: Gate) -> Iterator[InlineClient]:
    client = start(FakeRunner(FAKE, hook=gate), max_queue_size=1)
    yield client
    gate.opened.set()
    client.close()


def test_a_request_gets_its_tokens_and_one_last_output(client: InlineClient) -> None:
    box, request = Box(), ask("a", 9, 7)
    client.submit(request, box)
    final = box.wait()
    assert box.tokens == expected_tokens(request.prompt_token_ids, request.params, FAKE)
    assert len(box.finals) == 1 and final.finish_reason is FinishReason.LENGTH
    assert client.check_integrity() == []


def test_requests_from_many_threads_all_end(client: InlineClient) -> None:
    boxes = [Box() for _ in range(24)]

    def submit(numbers: range) -> None:
        for number in numbers:
            client.submit(ask(str(number), [number, 5, 6], 1 + number % 9), boxes[number])

    threads = [threading.Thread(target=submit, args=(range(first, 24, 4),)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, box in enumerate(boxes):
        assert box.wait().finish_reason is FinishReason.LENGTH
        assert len(box.tokens) == 1 + number % 9
    assert client.check_integrity() == [] and client.cache_state()["allocated_blocks"] == 0


def test_one_sink_gets_one_list_a_step(gated: InlineClient, gate: Gate) -> None:
    client = start(FakeRunner(FAKE, hook=gate))
    box = Box()
    client.submit(ask("first", [9], 1), Box())
    assert gate.entered.wait(SECONDS)
    for number in range(3):
        client.submit(ask(str(number), [number], 4), box)
    gate.opened.set()
    box.wait()
    client.close()
    assert [sorted(output.request_id for output in call) for call in box.calls] == [["0", "1", "2"]] * 4


def test_what_can_never_be_served_raises_in_the_callers_thread(client: InlineClient) -> None:
    """Pitfall 17: and nothing is queued."""
    box = Box()
    with pytest.raises(TokenOutOfRange):
        client.submit(ask("a", [200]), box)
    assert client.scheduler_state()["waiting_requests"] == 0 and box.calls == []


def test_a_duplicate_id_raises_and_the_first_one_goes_on(gated: InlineClient, gate: Gate) -> None:
    """Pitfall 17."""
    box = Box()
    gated.submit(ask("a", 3), box)
    with pytest.raises(DuplicateRequestId):
        gated.submit(ask("a", 4), Box())
    gate.opened.set()
    assert box.wait().finish_reason is FinishReason.LENGTH
    again = Box()
    gated.submit(ask("a", 4), again)
    assert again.wait().finish_reason is FinishReason.LENGTH


def test_a_full_line_comes_as_the_last_output(gated: InlineClient, gate: Gate) -> None:
    boxes = [Box() for _ in range(4)]
    gated.submit(ask("0", 3), boxes[0])
    assert gate.entered.wait(SECONDS)
    for number in (1, 2, 3):
        gated.submit(ask(str(number), 3), boxes[number])
    gate.opened.set()
    finals = [box.wait() for box in boxes]
    assert [isinstance(final.error, QueueFull) for final in finals] == [False, False, True, True]


def test_an_abort_ends_the_request_through_its_sink(gated: InlineClient, gate: Gate) -> None:
    box = Box()
    gated.submit(ask("a", 3, 100), box)
    assert gate.entered.wait(SECONDS)
    gated.abort("a")
    gated.abort("nobody")
    gate.opened.set()
    assert box.wait().finish_reason is FinishReason.ABORT
    assert gated.check_integrity() == [] and gated.cache_state()["allocated_blocks"] == 0


def test_closing_ends_all_requests_and_frees_the_runner(gate: Gate) -> None:
    runner, box = FakeRunner(FAKE, hook=gate), Box()
    client = start(runner)
    client.submit(ask("a", 3, 100), box)
    assert gate.entered.wait(SECONDS)
    gate.opened.set()
    client.close()
    client.close()
    final = box.wait()
    assert runner.stopped and (final.error is None or isinstance(final.error, EngineDead)) and len(box.finals) == 1
    with pytest.raises(EngineDead):
        client.submit(ask("b", 3), Box())
    with pytest.raises(EngineDead):
        client.check_integrity()
    client.abort("a")
    assert client.load().state is ReplicaState.STOPPED


def test_an_engine_that_dies_ends_all_requests_with_an_error() -> None:
    def hook(plan: StepPlan, stage: str) -> None:
        raise EngineDead("the device is gone")

    client = start(FakeRunner(FAKE, hook=hook))
    box = Box()
    client.submit(ask("a", 3), box)
    final = box.wait()
    assert isinstance(final.error, EngineDead) and "the device is gone" in final.error.message
    assert final.usage is not None and final.usage.prompt_tokens == 3
    client._thread.join(SECONDS)
    with pytest.raises(EngineDead):
        client.submit(ask("b", 3), Box())
    assert client.load().state is ReplicaState.DEAD
    client.close()


def test_the_state_says_where_the_engine_is_in_its_life_and_nothing_is_started_again() -> None:
    def hook(plan: StepPlan, stage: str) -> None:
        raise EngineDead("the device is gone")

    client, box = start(FakeRunner(FAKE, hook=hook)), Box()
    assert (client.state, client.restarts) == (ReplicaState.READY, 0)
    client.submit(ask("a", 3), box)
    box.wait()
    client._thread.join(SECONDS)
    assert (client.state, client.restarts) == (ReplicaState.DEAD, 0)
    client.close()
    assert (client.state, client.restarts) == (ReplicaState.STOPPED, 0)


def test_the_state_is_returned_at_once_during_a_step(gated: InlineClient, gate: Gate) -> None:
    gated.submit(ask("a", 3), Box())
    assert gate.entered.wait(SECONDS)
    assert gated.state is ReplicaState.READY
    gate.opened.set()
    gated.close()
    assert gated.state is ReplicaState.STOPPED


def test_a_bug_in_the_scheduler_ends_all_requests_without_its_details(monkeypatch: pytest.MonkeyPatch) -> None:
    client = start()

    def broken(now: float) -> None:
        raise AssertionError("internal detail")

    monkeypatch.setattr(client._loop.scheduler, "schedule", broken)
    box = Box()
    client.submit(ask("a", 3), box)
    final = box.wait()
    assert isinstance(final.error, EngineDead) and "internal detail" not in final.error.message
    client.close()


@pytest.mark.parametrize("error", [ConfigError("no such device"), SystemExit(3)])
def test_a_runner_that_does_not_start_raises_at_once(error: BaseException) -> None:
    class Broken(FakeRunner):
        def start(self) -> Any:
            raise error

    runner = Broken(FAKE)
    with pytest.raises(type(error)):
        start(runner)
    assert runner.stopped


def test_a_loop_that_cannot_be_built_stops_the_runner_it_started() -> None:
    runner = FakeRunner(FAKE)
    with pytest.raises(ConfigError, match="unknown policy"):
        start(runner, policy="lifo", overlap=True)
    assert runner.stopped
    assert not [thread for thread in threading.enumerate() if thread.name == "chairlift-runner" and thread.is_alive()]


def test_a_sink_that_raises_affects_no_other_request(client: InlineClient) -> None:
    def bad(outputs: list[EngineOutput]) -> None:
        raise RuntimeError("a broken sink")

    box = Box()
    client.submit(ask("a", [1], 5), bad)
    client.submit(ask("b", [2], 5), box)
    assert box.wait().finish_reason is FinishReason.LENGTH


def test_a_sink_may_submit_ask_and_close(client: InlineClient) -> None:
    """It runs in the engine's own thread, which must not wait for itself."""
    second = Box()

    def chain(outputs: list[EngineOutput]) -> None:
        if outputs[-1].finish_reason is not None:
            assert client.check_integrity() == []
            client.submit(ask("a", [2], 2), closing)

    def closing(outputs: list[EngineOutput]) -> None:
        second(outputs)
        if second.done.is_set():
            client.close()

    client.submit(ask("a", [1], 2), chain)
    assert second.wait().finish_reason is FinishReason.LENGTH
    client._thread.join(SECONDS)
    assert not client._thread.is_alive()


def test_every_step_is_shown_before_its_outputs_until_it_is_enough(client: InlineClient) -> None:
    heard: list[Any] = []
    box = Box()
    client.watch_steps(heard.append)

    def sink(outputs: list[EngineOutput]) -> None:
        heard.append(outputs)
        box(outputs)

    client.submit(ask("a", 9, 7), sink)
    box.wait()
    steps = [news for news in heard if isinstance(news, StepStats)]
    assert [stats.step_id for stats in steps] == list(range(7))
    assert all(isinstance(first, StepStats) and isinstance(then, list) for first, then in batched(heard))
    client.watch_steps(None)
    again = Box()
    client.submit(ask("b", 9, 7), again)
    again.wait()
    assert len([news for news in heard if isinstance(news, StepStats)]) == 7


def batched(things: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(things[::2], things[1::2], strict=True)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_warm_up_between_steps_changes_nothing(overlap: bool) -> None:
    runner = FakeRunner(FAKE)
    client = start(runner, overlap=overlap)
    boxes = [Box() for _ in range(8)]
    requests = [ask(str(number), [number, 5, 6], 90) for number in range(8)]
    for request, box in zip(requests, boxes, strict=True):
        client.submit(request, box)
    for _ in range(5):
        assert client.warmup() >= 0
    for request, box in zip(requests, boxes, strict=True):
        assert box.wait().finish_reason is FinishReason.LENGTH
        assert box.tokens == expected_tokens(request.prompt_token_ids, request.params, FAKE)
    before = client.load(), client.cache_state(), client.scheduler_state()
    client.warmup()
    assert (client.load(), client.cache_state(), client.scheduler_state()) == before
    assert runner.warmups == 6 and client.check_integrity() == [] and before[0].output_tokens == 8 * 90
    client.close()
    with pytest.raises(EngineDead):
        client.warmup()


def test_a_warm_up_that_fails_is_reported_and_the_engine_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large() -> None:
        raise MemoryError("no room for 2048 tokens")

    runner = FakeRunner(FAKE)
    monkeypatch.setattr(runner, "warmup", too_large)
    client, box = start(runner), Box()
    with pytest.raises(MemoryError, match="no room"):
        client.warmup()
    client.submit(ask("a", 3, 5), box)
    assert box.wait().finish_reason is FinishReason.LENGTH
    client.close()


def test_a_runner_that_dies_while_its_steps_are_collected_for_a_warm_up_ends_all_requests(
    gated: InlineClient, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def land() -> list[EngineOutput]:
        raise EngineDead("the device is gone")

    monkeypatch.setattr(gated._loop, "collect_in_flight", land)
    box = Box()
    gated.submit(ask("a", 3, 90), box)
    gate.opened.set()
    with pytest.raises(EngineDead, match="the device is gone"):
        gated.warmup()
    assert "the device is gone" in str(box.wait().error)


def test_a_fault_of_ours_while_steps_are_collected_for_a_warm_up_ends_the_engine(
    gated: InlineClient, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def land() -> list[EngineOutput]:
        raise AssertionError("half committed")

    monkeypatch.setattr(gated._loop, "collect_in_flight", land)
    box = Box()
    gated.submit(ask("a", 3, 90), box)
    gate.opened.set()
    with pytest.raises(EngineDead, match="died of an internal error"):
        gated.warmup()
    assert box.wait().finish_reason is FinishReason.ERROR and gated.fatal_error is not None


def test_a_runner_that_dies_of_its_warm_up_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies() -> None:
        raise EngineDead("the device is gone")

    runner = FakeRunner(FAKE)
    monkeypatch.setattr(runner, "warmup", dies)
    client = start(runner)
    with pytest.raises(EngineDead, match="the device is gone"):
        client.warmup()
    client._thread.join(SECONDS)
    assert client.fatal_error is not None
    client.close()


def test_a_warm_up_has_a_beginning_while_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, began, release = FakeRunner(FAKE), threading.Event(), threading.Event()

    def sleeps() -> None:
        began.set()
        assert release.wait(SECONDS)

    monkeypatch.setattr(runner, "warmup", sleeps)
    client = start(runner)
    assert client.warmup_started_at is None
    warming = threading.Thread(target=client.warmup)
    warming.start()
    assert began.wait(SECONDS)
    assert (
        client.warmup_started_at is not None
        and client.warmup_started_at <= time.monotonic()
        and client.step_started_at is None
    )
    release.set()
    warming.join(SECONDS)
    assert client.warmup_started_at is None
    client.close()


def test_flushing_evicts_blocks_without_references(client: InlineClient) -> None:
    box = Box()
    client.submit(ask("a", 9, 1), box)
    box.wait()
    assert client.flush_cache() == 2 and client.flush_cache() == 0
    assert client.load().free_blocks == 64


def test_an_idle_engine_sleeps(client: InlineClient) -> None:
    """Pitfall 18: while nothing is open the thread's CPU time stands still and the loop turns not once."""
    box = Box()
    client.submit(ask("a", 3), box)
    box.wait()
    assert client.check_integrity() == []
    clock = time.pthread_getcpuclockid(client._thread.ident or 0)
    turns = client._loop.scheduler.counters.steps
    used = []
    for _ in range(30):  # it may still be on its way to bed
        waits = count_waits(client)
        before = time.clock_gettime_ns(clock)
        time.sleep(0.1)
        used.append(time.clock_gettime_ns(clock) - before)
        if not used[-1]:
            break
    assert used[-1] == 0, f"an idle engine used the CPU: {used} ns"
    assert client._loop.scheduler.counters.steps == turns and waits == []


def count_waits(client: InlineClient) -> list[float | None]:
    """Note each time that the engine's thread goes to sleep anew."""
    seen: list[float | None] = []
    wait = client._awake.wait

    def noting(timeout: float | None = None) -> bool:
        seen.append(timeout)
        return wait(timeout)

    client._awake.wait = noting  # type: ignore[method-assign]
    return seen


@pytest.mark.parametrize("overlap", [False, True])
def test_an_engine_checks_its_integrity_when_it_falls_idle(overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pitfall 18: free + cached + held == all, checked without a request."""
    client = start(overlap=overlap)
    proved = threading.Event()
    check = client._loop.check_integrity

    def noted() -> list[str]:
        proved.set()
        return check()

    monkeypatch.setattr(client._loop, "check_integrity", noted)
    box = Box()
    client.submit(ask("a", 3), box)
    box.wait()
    assert proved.wait(SECONDS)
    client.close()


def test_a_question_is_answered_between_two_steps(gated: InlineClient, gate: Gate) -> None:
    box = Box()
    gated.submit(ask("a", 3, 2), box)
    assert gate.entered.wait(SECONDS) and gated.step_started_at is not None
    answers: list[object] = []
    asking = threading.Thread(target=lambda: answers.append(gated.scheduler_state()["active_requests"]))
    asking.start()
    gate.opened.set()
    asking.join(SECONDS)
    assert len(answers) == 1
    box.wait()


def test_requests_are_refused_by_the_limits_the_client_shows(client: InlineClient) -> None:
    request: GenerateRequest = ask("a", 3)
    assert client.info.num_blocks == client.limits.num_blocks == 64
    assert client.limits.max_output_tokens(len(request.prompt_token_ids)) == 64 * 4 + 1 - 3

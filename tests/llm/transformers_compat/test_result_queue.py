"""ResultQueue: reading by id and in order, handlers of several event loops, and waiting readers."""

import asyncio
import queue
import threading
import time
from typing import Any

import pytest

from chairlift.llm.transformers_compat import result_queue as module
from chairlift.llm.transformers_compat.generation_output import GenerationOutput
from chairlift.llm.transformers_compat.request_status import RequestStatus
from chairlift.llm.transformers_compat.result_queue import ResultQueue


def output(name: str, tokens: int = 1, status: RequestStatus = RequestStatus.DECODING) -> GenerationOutput:
    return GenerationOutput(name, generated_tokens=[1] * tokens, status=status)


def last(name: str) -> GenerationOutput:
    return output(name, 9, RequestStatus.FINISHED)


def read(outputs: ResultQueue, name: str | None = None, timeout: float | None = 0.0) -> Any:
    return outputs.read(name, timeout, lambda: False)


def test_reading_one_request_leaves_the_others_in_order() -> None:
    outputs = ResultQueue()
    outputs.deliver([output("a"), output("b"), output("a", 2), output("c")])
    assert [len(read(outputs, "a").generated_tokens) for _ in range(2)] == [1, 2]
    assert read(outputs, "a") is None and outputs.qsize() == 2
    assert [read(outputs).request_id for _ in range(2)] == ["b", "c"]
    assert read(outputs) is None and outputs.empty() and not outputs._numbers


def test_the_methods_of_a_queue() -> None:
    outputs = ResultQueue()
    with pytest.raises(queue.Empty):
        outputs.get_nowait()
    with pytest.raises(queue.Empty):
        outputs.get(timeout=0.01)
    outputs.put(output("a"))
    assert outputs.get(timeout=1).request_id == "a"


def test_a_reader_waits_for_its_own_output_only() -> None:
    outputs, found = ResultQueue(), []
    reader = threading.Thread(target=lambda: found.append(outputs.read("b", 20.0, lambda: True)))
    reader.start()
    outputs.deliver([output("a")])
    assert not found
    outputs.deliver([output("b")])
    reader.join(20)
    assert found[0].request_id == "b" and outputs.qsize() == 1


def test_a_reader_stops_waiting_when_nothing_can_come() -> None:
    outputs, can_come, found = ResultQueue(), [True], []
    reader = threading.Thread(target=lambda: found.append(outputs.read("a", None, lambda: can_come[0])))
    reader.start()
    can_come[0] = False
    outputs.notify()
    reader.join(20)
    assert found == [None]


@pytest.fixture
def no_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let readers wake only when they are woken."""
    monkeypatch.setattr(module, "CHECK_SECONDS", 1e6)


def wait_for_readers(outputs: ResultQueue, count: int) -> None:
    while sum(map(len, outputs._readers.values())) < count:
        time.sleep(0.001)


@pytest.mark.usefixtures("no_checks")
def test_outputs_of_other_requests_do_not_wake_a_reader() -> None:
    outputs, checks = ResultQueue(), []
    readers = [
        threading.Thread(target=outputs.read, args=(name, None, lambda name=name: checks.append(name) or True))
        for name in ("b", "c", "c")
    ]
    for reader in readers:
        reader.start()
    wait_for_readers(outputs, 3)
    for _ in range(50):
        outputs.deliver([output("a")])
        time.sleep(0.001)  # the readers could run here
    outputs.deliver([output("b"), output("c"), output("c")])
    for reader in readers:
        reader.join(20)
        assert not reader.is_alive()
    assert sorted(checks) == ["b", "c", "c"] and outputs.qsize() == 50 and not outputs._readers


@pytest.mark.usefixtures("no_checks")
def test_no_reader_misses_an_output_and_none_is_read_twice() -> None:
    outputs, names, each = ResultQueue(), [f"r{number}" for number in range(12)], 60
    by_id: dict[str, list[int]] = {name: [] for name in names[:8]}
    others: list[GenerationOutput] = []

    def read_one(name: str) -> None:
        for _ in range(each):
            found = outputs.read(name, None, lambda: True)
            assert found is not None
            by_id[name].append(len(found.generated_tokens))

    def read_any() -> None:
        while (found := outputs.get()).request_id != "end":
            others.append(found)

    def produce(name: str) -> None:
        for number in range(each):
            outputs.deliver([output(name, number)])

    readers = [threading.Thread(target=read_one, args=(name,), daemon=True) for name in by_id]
    producers = [threading.Thread(target=produce, args=(name,), daemon=True) for name in names]
    for thread in (*readers, *producers):
        thread.start()
    for thread in (*producers, *readers):
        thread.join(60)
        assert not thread.is_alive()
    assert all(numbers == list(range(each)) for numbers in by_id.values())
    collectors = [threading.Thread(target=read_any, daemon=True) for _ in range(3)]
    for thread in collectors:
        thread.start()
    more = [threading.Thread(target=produce, args=(name,), daemon=True) for name in names]
    for thread in more:
        thread.start()
    for thread in more:
        thread.join(60)
    outputs.deliver([output("end") for _ in collectors])
    for thread in collectors:
        thread.join(60)
        assert not thread.is_alive()
    assert len(others) == 4 * each + len(names) * each and outputs.empty() and not outputs._readers


def test_handlers_of_two_loops_get_their_own_outputs_of_one_step() -> None:
    outputs, ready, stop = ResultQueue(), threading.Event(), threading.Event()
    calls: list[tuple[str, str]] = []

    async def handle(name: str) -> None:
        thread = threading.current_thread().name
        outputs.register(name, lambda each: calls.append((each.request_id, thread)), asyncio.get_running_loop())
        ready.set() if name == "b" else None
        await asyncio.to_thread(stop.wait, 20)
        await asyncio.sleep(0)

    first = threading.Thread(target=lambda: asyncio.run(handle("a")), name="one")
    second = threading.Thread(target=lambda: asyncio.run(handle("b")), name="two")
    first.start()
    while not outputs.num_handlers:
        pass
    second.start()
    assert ready.wait(20)
    outputs.deliver([last("a"), last("b"), output("c")])
    stop.set()
    first.join(20)
    second.join(20)
    assert sorted(calls) == [("a", "one"), ("b", "two")]
    assert outputs.num_handlers == 0 and outputs.qsize() == 1


def test_a_handler_that_comes_late_gets_what_waits_and_one_that_raises_stops_no_other() -> None:
    outputs, seen, errors = ResultQueue(), [], []

    def fail(each: GenerationOutput) -> None:
        raise ValueError("a handler fails")

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
        outputs.deliver([output("a", 1), output("a", 2)])
        outputs.register("a", lambda each: seen.append(len(each.generated_tokens)), loop)
        outputs.register("b", fail, loop)
        outputs.deliver([last("b"), last("a")])
        outputs.deliver([last("done")])
        outputs.register("done", lambda each: seen.append(0), loop)
        await asyncio.sleep(0.01)

    asyncio.run(scenario())
    assert seen == [1, 2, 9, 0] and [str(error) for error in errors] == ["a handler fails"]
    assert outputs.num_handlers == 0 and outputs.empty()


def test_outputs_of_a_closed_loop_are_queued() -> None:
    outputs = ResultQueue()
    loop = asyncio.new_event_loop()
    outputs.register("a", lambda each: None, loop)
    loop.close()
    outputs.deliver([output("a")])
    outputs.deliver([last("a")])
    assert [read(outputs, "a").status for _ in range(2)] == [RequestStatus.DECODING, RequestStatus.FINISHED]
    outputs.register("b", lambda each: None, loop)
    outputs.unregister("b")
    assert outputs.num_handlers == 0

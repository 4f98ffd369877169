"""ContinuousBatchingDebugger: answers in every state of the engine, and finds what is inconsistent."""

import json
from typing import Any

import pytest

from chairlift import ContinuousBatchingDebugger, ContinuousBatchProcessor, RequestState
from chairlift.core.errors import EngineDead
from chairlift.engine.client.inline import InlineClient
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.runner.fake import FakeRunner
from support_engine import make_request
from support_inline import FAKE, WAIT_SECONDS, StepGate, start_client


class Manager:
    """The part of a manager that a debugger reads."""

    def __init__(self, client: InlineClient | None) -> None:
        self.batch_processor = None if client is None else ContinuousBatchProcessor.of_client(client)


def dumps(debugger: ContinuousBatchingDebugger) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return both dumps, as they come back from JSON."""
    scheduler, cache = debugger.dump_scheduler_state(), debugger.dump_cache_state()
    assert (json.loads(json.dumps(scheduler)), json.loads(json.dumps(cache))) == (scheduler, cache)
    return scheduler, cache


def running_client(outputs: list[Any]) -> tuple[InlineClient, StepGate]:
    """Return a client that is in the first step of request a, with b waiting."""
    gate = StepGate()
    client = start_client(FakeRunner(FAKE, hook=gate), max_running_requests=1)
    for name in ("a", "b"):
        client.submit(make_request(name, 5, 4), outputs.extend)
    assert gate.entered.wait(WAIT_SECONDS)
    return client, gate


def test_the_counts_are_those_of_the_engine_while_it_runs_and_after_its_end() -> None:
    outputs: list[Any] = []
    client, gate = running_client(outputs)
    debugger = ContinuousBatchingDebugger(Manager(client))
    gate.opened.set()
    while sum(each.is_final for each in outputs) < 2:
        scheduler, cache = dumps(debugger)
        assert scheduler["engine"] == cache["engine"] == "ready" and scheduler["error"] is None
        assert sum(cache["blocks_by_request"].values()) <= cache["total_blocks"]
        assert debugger.validate_consistency() == []
    scheduler, cache = dumps(debugger)
    own_scheduler, own_cache = client.scheduler_state(), client.cache_state()
    assert {name: scheduler[name] for name in own_scheduler} == own_scheduler
    assert {name: cache[name] for name in own_cache} == own_cache
    assert cache["blocks_by_request"] == {} and cache["blocks_of_callers"] == 0
    client.close()
    stopped, blocks = dumps(debugger)
    assert stopped["engine"] == "stopped" and stopped["steps"] == scheduler["steps"] > 0
    assert stopped["finished_by_reason"]["length"] == 2 and blocks["total_blocks"] == FAKE.num_blocks
    assert debugger.validate_consistency() == []


def test_it_answers_while_the_engine_is_paused() -> None:
    client = start_client()
    debugger, outputs = ContinuousBatchingDebugger(Manager(client)), list[Any]()
    with client.paused():
        client.submit(make_request("a", 5, 4), outputs.extend)
        scheduler, cache = dumps(debugger)
        assert (scheduler["engine"], scheduler["active_requests"], cache["allocated_blocks"]) == ("ready", 0, 0)
        assert debugger.validate_consistency() == []
    client.close()


def test_it_answers_after_a_failure_with_the_reason() -> None:
    def fail(plan: object, stage: str) -> None:
        raise EngineDead("the device is gone")

    outputs: list[Any] = []
    client = start_client(FakeRunner(FAKE, hook=fail))
    debugger = ContinuousBatchingDebugger(Manager(client))
    client.submit(make_request("a", 5, 4), outputs.extend)
    client.thread.join(WAIT_SECONDS)
    scheduler, cache = dumps(debugger)
    assert scheduler["engine"] == "dead" and "the device is gone" in scheduler["error"]
    assert cache["blocks_by_request"] == {"a": 2} and cache["allocated_blocks"] == 2
    assert debugger.validate_consistency() == []
    client.close()


def test_a_manager_that_has_not_started_and_one_that_let_its_engine_go() -> None:
    manager = Manager(None)
    debugger = ContinuousBatchingDebugger(manager)
    assert dumps(debugger)[0] == {"engine": "not started", "error": None} and debugger.validate_consistency() == []
    client = start_client()
    manager.batch_processor = ContinuousBatchProcessor.of_client(client)
    assert dumps(debugger)[0]["engine"] == "ready"
    client.close()
    manager.batch_processor = None
    assert dumps(debugger)[0]["engine"] == "stopped"


@pytest.mark.parametrize("plant", ["lost block", "counter", "leaked table", "slot"])
def test_a_planted_inconsistency_is_found(plant: str) -> None:
    loop = EngineLoop(FakeRunner(FAKE), SchedulerConfig())
    loop.start()
    processor = ContinuousBatchProcessor(loop)
    processor.input_queue.put(RequestState("a", [1, 2, 3, 4, 5], max_new_tokens=4))
    assert processor.prepare_next_batch()
    processor._generation_step()
    processor.update_batch()
    debugger = ContinuousBatchingDebugger(processor)
    assert debugger.validate_consistency() == [] and dumps(debugger)[0]["engine"] == "stepped by hand"
    scheduler = loop.scheduler
    (sequence,) = scheduler.running.values()
    if plant == "lost block":
        scheduler.cache.pool.allocate(1)
    elif plant == "counter":
        sequence.num_computed_tokens = sequence.num_scheduled_tokens + 1
    elif plant == "leaked table":
        scheduler.cache.allocate_table(scheduler.cache.no_hit, 4, ())
    else:
        sequence.slot = -1
    found = debugger.validate_consistency()
    assert found and any(word in " ".join(found) for word in ("block", "counters", "slot")), found
    assert json.loads(json.dumps(found)) == found


def test_blocks_that_a_caller_holds_are_counted_and_consistent() -> None:
    client = start_client()
    manager = Manager(client)
    debugger = ContinuousBatchingDebugger(manager)
    assert manager.batch_processor is not None
    manager.batch_processor.cache.allocate_blocks(3, "mine")
    assert dumps(debugger)[1]["blocks_of_callers"] == 3 and debugger.validate_consistency() == []
    client.close()

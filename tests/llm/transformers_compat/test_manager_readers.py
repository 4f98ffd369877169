"""What code written for transformers' manager reads and sets, and what a debugger reads of a manager."""

import asyncio
import threading
import time
from contextlib import closing

import pytest

from chairlift import ContinuousBatchingDebugger
from chairlift.core.errors import EngineDead
from chairlift.engine.client.inline import InlineClient
from chairlift.llm.transformers_compat import result_queue
from chairlift.llm.transformers_compat.request_status import RequestStatus
from support_transformers_compat import fake_manager

PROMPT = [5, 6, 7, 8]


def test_further_sequences_can_be_asked_for_after_the_manager_was_made() -> None:
    with fake_manager(max_new_tokens=3) as manager:
        manager.num_return_sequences = 2
        manager.add_requests([PROMPT])
        outputs = [manager.get_result(timeout=20) for _ in range(2)]
        assert all(output is not None and output.status is RequestStatus.FINISHED for output in outputs)
        tokens = [output.generated_tokens for output in outputs if output is not None]
        assert tokens[0] == tokens[1] and manager.output_router.output_queue.empty()


def test_a_debugger_reads_a_manager_in_every_state() -> None:
    with fake_manager(start=False) as manager:
        debugger = ContinuousBatchingDebugger(manager)
        assert debugger.dump_scheduler_state()["engine"] == "not started" and debugger.validate_consistency() == []
        manager.start()
        request = manager.add_request(PROMPT, max_new_tokens=200)
        with manager.pause():
            paused = debugger.dump_scheduler_state()
            assert paused["active_requests"] + paused["waiting_requests"] == len(manager.open_requests)
            assert debugger.validate_consistency() == []
        manager.cancel_request(request)
        assert manager.get_result(request, timeout=20) is not None
        assert manager.client is not None and debugger.dump_cache_state()["allocated_blocks"] == 0
        assert manager.client.scheduler_state()["steps"] == debugger.dump_scheduler_state()["steps"]
        manager.stop()
        for later in (debugger, ContinuousBatchingDebugger(manager)):
            assert later.dump_scheduler_state()["engine"] == "stopped" and later.validate_consistency() == []
        assert manager.batch_processor is None and manager.last_batch_processor is not None


def test_a_pause_of_an_engine_that_died_has_its_error_as_the_cause() -> None:
    failing = threading.Event()

    def fail(plan: object, stage: str) -> None:
        if failing.is_set():
            raise EngineDead("the device is gone")

    with fake_manager(hook=fail) as manager:
        client, debugger = manager.client, ContinuousBatchingDebugger(manager)
        assert client is not None
        failing.set()
        name = manager.add_request(PROMPT, max_new_tokens=5)
        client.thread.join(20)
        with pytest.raises(RuntimeError, match="cannot be paused") as caught, manager.pause():
            pass
        assert "the device is gone" in str(caught.value.__cause__)
        output = manager.get_result(name, timeout=20)
        assert output is not None and output.status is RequestStatus.FAILED and "device is gone" in str(output.error)
        dump = debugger.dump_scheduler_state()
        assert dump["engine"] == "dead" and "the device is gone" in dump["error"]


def test_a_pause_of_an_engine_that_ends_meanwhile_raises_what_transformers_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ended(client: InlineClient) -> None:
        raise EngineDead("the engine is closed")

    with fake_manager() as manager:
        monkeypatch.setattr(InlineClient, "paused", ended)
        with pytest.raises(RuntimeError, match="ended before it could be paused") as caught, manager.pause():
            pass
        assert isinstance(caught.value.__cause__, EngineDead)
        monkeypatch.undo()
        with manager.pause():
            assert manager.is_running()


@pytest.mark.parametrize("end", ["stop", "destroy", "failure", "handler"])
def test_a_reader_of_any_output_is_woken_by_the_end_of_the_engine(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_queue, "CHECK_SECONDS", 1e6)
    failing, found = threading.Event(), []

    def fail(plan: object, stage: str) -> None:
        if failing.is_set():
            raise EngineDead("the device is gone")

    with fake_manager(hook=fail) as manager, closing(asyncio.new_event_loop()) as loop:
        reader = threading.Thread(target=lambda: found.extend(manager), daemon=True)
        reader.start()
        while None not in manager.output_queue._readers:
            time.sleep(0.001)
        if end == "stop":
            manager.stop()
        elif end == "destroy":
            manager.destroy()
        else:
            failing.set()
            if end == "handler":
                manager.output_queue.register("a", lambda output: None, loop)
            manager.add_request(PROMPT, "a", max_new_tokens=5)
        reader.join(20)
        assert not reader.is_alive() and len(found) == (end == "failure")

"""ManagedEngine: one engine at a time, whose thread ends when its manager is dropped and its requests have ended."""

import asyncio
import copy
import gc
import subprocess
import sys
import threading
import weakref
from typing import Any

import pytest
import torch

from chairlift.core.errors import EngineDead
from chairlift.core.load_report import ReplicaState
from chairlift.engine.client.inline import InlineClient
from chairlift.llm.transformers_compat.attach import attach
from chairlift.llm.transformers_compat.generation_output import GenerationOutput
from chairlift.llm.transformers_compat.manager import ContinuousBatchingManager
from support_bridged_models import bridged_model
from support_shares import for_each
from support_source_tree import ROOT
from support_transformers_compat import SLOW, greedy_tokens, make_fake_manager

PROMPT = [5, 6, 7]


def client_of(manager: ContinuousBatchingManager) -> InlineClient:
    assert manager.client is not None
    return manager.client


@for_each("state", ["started", "warmed up", "used", "shown", "kept", "paused before"])
def test_the_engine_of_a_dropped_manager_ends(state: str) -> None:
    manager = make_fake_manager()
    manager.warmup()
    if state != "warmed up":
        manager.start()
    if state in ("used", "kept"):
        assert manager.get_result(manager.add_request(PROMPT, max_new_tokens=3), 20) is not None
    elif state == "shown":
        assert manager.batch_processor is not None and manager.current_batch >= 0
    elif state == "paused before":
        with manager.pause():
            pass
    if state == "kept":
        manager.stop(keep_for_next_session=True)
        del manager.__dict__["model"]
    client, dropped = client_of(manager), weakref.ref(manager)
    del manager
    gc.collect()
    assert dropped() is None
    client.thread.join(20)
    assert not client.thread.is_alive() and client.state is ReplicaState.STOPPED


def test_open_requests_of_a_dropped_manager_finish_first() -> None:
    manager = make_fake_manager(SLOW)
    manager.start()
    names = manager.add_requests([PROMPT] * 4, 20)
    client, outputs = client_of(manager), manager.output_queue
    del manager
    gc.collect()
    made = [outputs.read(name, 60, lambda: True) for name in names]
    assert [output and output.generated_tokens for output in made] == [greedy_tokens(PROMPT, 20)] * 4
    client.thread.join(20)
    assert not client.thread.is_alive()


def test_handlers_of_a_dropped_manager_get_the_last_output() -> None:
    async def main() -> list[GenerationOutput]:
        manager, found, ended = make_fake_manager(SLOW), list[GenerationOutput](), asyncio.Event()

        def receive(output: GenerationOutput) -> None:
            found.append(output)
            if output.is_finished():
                ended.set()

        manager.start()
        manager.register_result_handler(manager.add_request(PROMPT, max_new_tokens=9, streaming=True), receive)
        del manager
        gc.collect()
        await asyncio.wait_for(ended.wait(), 60)
        return found

    assert [len(output.generated_tokens) for output in asyncio.run(main())] == list(range(1, 10))


def test_an_iteration_keeps_the_manager() -> None:
    manager = make_fake_manager(SLOW)
    manager.start()
    outputs = manager.request_id_iter(manager.add_request(PROMPT, max_new_tokens=5, streaming=True))
    del manager
    gc.collect()
    assert [len(output.generated_tokens) for output in outputs] == [1, 2, 3, 4, 5]


def test_a_manager_that_is_dropped_in_the_engine_thread_ends_its_engine() -> None:
    dropped = threading.Event()
    holder: list[Any] = []

    def hook(plan: object, stage: str) -> None:
        if holder and stage == "launch":
            holder.clear()
            dropped.set()

    manager = make_fake_manager(hook=hook)
    manager.start()
    name, client, outputs = manager.add_request(PROMPT, max_new_tokens=200), client_of(manager), manager.output_queue
    holder.append(manager)
    del manager
    output = outputs.read(name, 60, lambda: True)
    client.thread.join(20)
    assert output is not None and len(output.generated_tokens) == 200 and not client.thread.is_alive()


def test_a_stopped_manager_leaves_no_engine_to_close_and_a_restarted_one_only_its_last() -> None:
    manager = make_fake_manager()
    manager.start()
    first = client_of(manager)
    manager.stop()
    assert manager._engine._finalizer is None and not first.thread.is_alive()
    manager.start()
    second = client_of(manager)
    second.close()  # as one that failed
    with pytest.raises(EngineDead):
        manager.add_request(PROMPT)
    manager.stop(hard_stop=True)
    manager.start()
    third, released = client_of(manager), weakref.ref(second)
    del second
    gc.collect()
    assert released() is None and third.thread.is_alive()
    manager.destroy()
    assert not third.thread.is_alive()


@pytest.mark.share(1)
@pytest.mark.parametrize("is_kept", [False, True])
def test_a_model_that_is_dropped_with_its_manager_ends_the_engine(is_kept: bool) -> None:
    model: Any = attach(bridged_model("gpt2").float().eval())
    if is_kept:
        assert model.generate_batch([PROMPT], max_new_tokens=2, persistent_manager=True)
        manager = model.init_continuous_batching()
    else:
        manager = model.init_continuous_batching(max_new_tokens=2)
        manager.start()
    client = client_of(manager)
    del manager, model
    gc.collect()
    client.thread.join(20)
    assert not client.thread.is_alive()


SCRIPT = """
import threading
from support_transformers_compat import make_fake_manager
manager = make_fake_manager()
manager.start()
print(manager.get_result(manager.add_request([5, 6], max_new_tokens=2)).status.name)
del manager
for thread in threading.enumerate():
    if thread.name == "chairlift-engine":
        thread.join(20)
print([thread.name for thread in threading.enumerate()])
"""


@pytest.mark.full
def test_a_script_that_drops_its_manager_has_no_thread_left() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT / "tests", check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["FINISHED", "['MainThread']"]


def test_the_end_of_a_pause_names_a_replaced_parameter_and_requests_go_on() -> None:
    model = attach(bridged_model("gpt2", dtype=torch.float32).eval())
    manager = model.init_continuous_batching(max_new_tokens=3)
    manager.start()
    new = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match="change parameters in place"), manager.pause():
        model.load_state_dict(new, assign=True)
    manager.add_request([5, 6, 7], "r")
    assert manager.get_result("r", timeout=60).is_finished()
    manager.stop()

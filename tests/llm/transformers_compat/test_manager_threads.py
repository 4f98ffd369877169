"""ContinuousBatchingManager under load: producers, cancel races, handlers of event loops, and exit without stop()."""

import asyncio
import contextlib
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.errors import EngineDead
from chairlift.llm.transformers_compat.manager import ContinuousBatchingManager
from chairlift.llm.transformers_compat.request_status import RequestStatus
from support_transformers_compat import SLOW, fake_manager, greedy_tokens, random_prompts

PROMPT = [5, 6, 7]

TESTS = Path(__file__).parents[2]
"""Folder of the modules that scripts import."""


def in_threads(*functions: Any) -> None:
    """Run functions in threads; raise the first error."""
    errors: list[BaseException] = []

    def run(function: Any) -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


@pytest.mark.full
def test_many_producers_and_readers_each_get_their_own_outputs() -> None:
    def client(number: int) -> None:
        for turn, prompt in enumerate(random_prompts(15, seed=number)):
            name = f"{number}-{turn}"
            manager.add_request(prompt, name, 1 + turn % 7, streaming=turn % 2 == 0)
            *_, last = manager.request_id_iter(name)
            assert last.generated_tokens == greedy_tokens(prompt, 1 + turn % 7)

    with fake_manager(max_queue_size=3) as manager:
        in_threads(*(lambda number=number: client(number) for number in range(12)))
        assert manager.output_queue.empty() and not manager.open_requests


def test_cancel_races_end_each_request_once() -> None:
    names = [f"r{number}" for number in range(200)]
    added: set[str] = set()

    def produce(own: list[str]) -> None:
        for name in own:
            manager.add_request(PROMPT, name, 1 + len(own) % 5)
            added.add(name)

    def cancel(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(400):
            manager.cancel_request(rng.choice(names))

    with fake_manager() as manager:
        in_threads(
            *(lambda at=at: produce(names[at::4]) for at in range(4)), *(lambda at=at: cancel(at) for at in range(3))
        )
        outputs = [manager.get_result(name, 20) for name in names]
        assert {output.status for output in outputs if output} <= {RequestStatus.FINISHED, RequestStatus.CANCELLED}
        assert len(outputs) == 200 and None not in outputs and manager.output_queue.empty()


def test_a_thousand_cancelled_requests_leave_nothing_open() -> None:
    with fake_manager(SLOW) as manager:
        names = manager.add_requests([PROMPT] * 1000, 200)
        for name in names:
            manager.cancel_request(name)
        assert {output.status for name in names if (output := manager.get_result(name, 60))} == {
            RequestStatus.CANCELLED
        }
        client = manager.client
        assert client is not None and not manager.open_requests and manager.output_queue.empty()
        assert not manager.output_queue._numbers and not client._open
        load = client.load()
        assert load.running_requests == load.waiting_requests == 0
        assert client.cache_state()["allocated_blocks"] == 0 and client.check_integrity() == []


def test_stops_starts_and_producers_at_once_lose_no_request() -> None:
    accepted: list[str] = []
    ends: list[Any] = []
    restarted = threading.Event()

    def produce(number: int) -> None:
        for turn in range(60):
            name = f"{number}-{turn}"
            with contextlib.suppress(EngineDead):
                manager.add_request(PROMPT, name, 2)
                accepted.append(name)
        restarted.wait(20)  # a busy machine may have run all of them while the manager was stopped
        manager.add_request(PROMPT, f"{number}-last", 2)
        accepted.append(f"{number}-last")

    def restart() -> None:
        for turn in range(6):
            manager.stop(hard_stop=turn % 2 == 1, keep_for_next_session=turn % 3 == 0)
            manager.start()
        restarted.set()

    with fake_manager() as manager:
        in_threads(*(lambda number=number: produce(number) for number in range(3)), restart)
        ends = [manager.get_result(name, 20) for name in accepted]
        assert accepted and None not in ends and manager.output_queue.empty()


def test_handlers_get_every_output_registered_before_or_after_the_request_and_none_stays() -> None:
    async def stream(name: str, before: bool) -> list[int]:
        lengths: list[int] = []
        ended = asyncio.Event()

        def handle(output: Any) -> None:
            lengths.append(len(output.generated_tokens))
            ended.set() if output.is_finished() else None

        if before:
            manager.register_result_handler(name, handle)
        manager.add_request(PROMPT, name, 5, streaming=True)
        if not before:
            await asyncio.sleep(0.01)
            manager.register_result_handler(name, handle)
        await asyncio.wait_for(ended.wait(), 30)
        return lengths

    async def client(prefix: str) -> None:
        lengths = await asyncio.gather(*(stream(f"{prefix}{at}", at % 2 == 0) for at in range(10)))
        assert lengths == [[1, 2, 3, 4, 5]] * 10

    with fake_manager() as manager:
        with pytest.raises(RuntimeError, match="no running event loop"):
            manager.register_result_handler("a", lambda output: None)
        in_threads(*(lambda name=name: asyncio.run(client(name)) for name in "abc"))
        assert manager.output_queue.num_handlers == 0 and manager.output_queue.empty()


def test_a_client_whose_event_loop_has_ended_harms_no_other() -> None:
    async def leave(manager: ContinuousBatchingManager) -> None:
        manager.register_result_handler("gone", lambda output: None)
        manager.add_request(PROMPT, "gone", 100, streaming=True)

    with fake_manager(SLOW) as manager:
        asyncio.run(leave(manager))
        manager.add_request(PROMPT, "here", 30)
        output = manager.get_result("here", 20)
        assert output is not None and output.generated_tokens == greedy_tokens(PROMPT, 30)
        *_, last = manager.request_id_iter("gone")
        assert last.generated_tokens == greedy_tokens(PROMPT, 100) and manager.output_queue.num_handlers == 0


def test_pauses_of_many_threads_lose_no_token() -> None:
    def pause() -> None:
        for _ in range(8):
            with manager.pause():
                held.append(len(manager.open_requests))

    held: list[int] = []
    with fake_manager() as manager:
        names = manager.add_requests([PROMPT] * 10, 100)
        in_threads(pause, pause, pause)
        outputs = [manager.get_result(name, 60) for name in names]
        assert len(held) == 24
        assert all(output is not None and output.generated_tokens == greedy_tokens(PROMPT, 100) for output in outputs)


MODEL = """
import torch
from support_transformers_compat import float32_model
from chairlift.llm.transformers_compat.attach import attach
from chairlift.llm.transformers_compat.manager import ContinuousBatchingManager
model = attach(float32_model("llama"))
"""
FORGOTTEN = {
    "manager": """
manager = ContinuousBatchingManager(model, max_new_tokens=900, eos_token_id=-1)
manager.start()
manager.add_requests([[5, 6, 7]] * 8, streaming=True)
assert manager.get_result() is not None
""",
    "stop without waiting": """
manager = ContinuousBatchingManager(model, max_new_tokens=900, eos_token_id=-1)
manager.start()
manager.add_requests([[5, 6, 7]] * 8)
manager.stop(block=False)
""",
    "persistent manager": """
model.generate_batch([[5, 6, 7]], max_new_tokens=3, persistent_manager=True)
""",
    "pause in a daemon thread": """
import threading, time
manager = ContinuousBatchingManager(model, max_new_tokens=900, eos_token_id=-1)
manager.start()
manager.add_request([5, 6, 7])
held = threading.Event()
def hold():
    with manager.pause():
        held.set()
        time.sleep(1000)
threading.Thread(target=hold, daemon=True).start()
held.wait()
""",
}


@pytest.mark.full  # each is a process that imports torch and transformers
@pytest.mark.parametrize("case", FORGOTTEN)
def test_a_script_that_forgets_to_stop_ends_without_an_error(case: str) -> None:
    script = f"{MODEL}{FORGOTTEN[case]}"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=TESTS, check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr

"""EngineReader: an engine that hangs holds one thread, and what it has answered is kept."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from chairlift.core.errors import EngineDead, OutOfBlocks
from chairlift.server.live import engine_reader
from chairlift.server.live.engine_reader import EngineReader
from support_process import TIMEOUT_SECONDS
from support_server import run


class Question:
    """A client's method that hangs until it is released; it counts its calls."""

    def __init__(self) -> None:
        self.may_answer, self.num_calls = threading.Event(), 0

    def __call__(self) -> int:
        self.num_calls += 1
        self.may_answer.wait(TIMEOUT_SECONDS)
        return self.num_calls


def test_the_next_question_waits_for_the_same_answer_and_the_time_counts_from_the_first() -> None:
    async def scenario() -> None:
        reader, question = EngineReader(), Question()
        with pytest.raises(EngineDead, match=r"did not answer within 0\.01 s: it computes a long step, or hangs"):
            await reader.ask("a", question, 0.01)
        for _ in range(5):
            with pytest.raises(EngineDead):
                await reader.ask("a", question, 0.0)
        late = asyncio.create_task(reader.ask("a", question, TIMEOUT_SECONDS))
        await asyncio.sleep(0)
        question.may_answer.set()
        assert await late == 1 == question.num_calls
        assert await reader.ask("a", question, TIMEOUT_SECONDS) == 2
        reader.close()

    run(scenario())


def test_a_wait_that_is_cancelled_leaves_the_question_open() -> None:
    async def scenario() -> None:
        reader, question = EngineReader(), Question()
        first = asyncio.create_task(reader.ask("a", question, TIMEOUT_SECONDS))
        second = asyncio.create_task(reader.ask("a", question, TIMEOUT_SECONDS))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        question.may_answer.set()
        assert await second == 1
        reader.close()

    run(scenario())


def test_an_error_is_raised_each_time_and_never_kept() -> None:
    async def scenario() -> None:
        reader, faults = EngineReader(), [OutOfBlocks(0, 1), EngineDead("killed")]

        def ask() -> str:
            if faults:
                raise faults.pop(0)
            return "here"

        with pytest.raises(OutOfBlocks):
            await reader.ask("a", ask)
        with pytest.raises(EngineDead, match="killed"):
            await reader.ask("a", ask)
        assert await reader.ask("a", ask) == "here"
        reader.close()

    run(scenario())


@pytest.mark.parametrize(("num_blocks", "is_late"), [(10, True), (10_000_000, False)])
def test_what_is_known_is_returned_and_a_large_cache_has_time_for_its_check(
    monkeypatch: pytest.MonkeyPatch, num_blocks: int, is_late: bool
) -> None:
    monkeypatch.setattr(engine_reader, "ENGINE_SECONDS", 0.05)
    question = Question()

    async def scenario() -> None:
        reader = EngineReader()
        client: Any = SimpleNamespace(
            scheduler_state=lambda: {"sequences": []}, cache_state=lambda: {"total_blocks": num_blocks},
            check_integrity=question,
        )  # fmt: skip
        reading = asyncio.create_task(reader.read_state(client, 1e9))
        if not is_late:
            await asyncio.sleep(0.1)
            question.may_answer.set()
        state = await reading
        assert state["scheduler"] == {"sequences": []} and state["cache"]["total_blocks"] == num_blocks
        assert ("integrity_errors" in state, "error" in state) == (not is_late, is_late)
        question.may_answer.set()
        assert (await reader.read_state(client, 9))["integrity_skipped"].endswith(" blocks, the limit is 9")
        reader.close()

    run(scenario())

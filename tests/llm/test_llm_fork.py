"""LLM and AsyncLLM in forks of their process: an error at once, also in multiprocessing, and the parent goes on."""

import asyncio
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from chairlift import LLM, AsyncLLM, SamplingParams
from chairlift.llm.profiling_client import ProfilingClient, open_profile
from chairlift.llm.text_service import TextService
from support_forks import TORCH_MODULES, run_process
from support_os_fork import run_in_fork
from support_services import fake_service, text_of
from support_shares import for_each

PARAMS = SamplingParams(max_tokens=4, seed=3)
MESSAGE = "EngineDead: this process was forked from process"


@pytest.fixture
def service() -> Iterator[TextService]:
    service = fake_service()
    with closing(service.client):
        yield service
        (output,) = LLM.from_service(service).generate("lift", PARAMS, use_tqdm=False)
        assert output.outputs[0].text == text_of("lift", PARAMS) and service.client.check_integrity() == []


CALLS: dict[str, Callable[[LLM], Any]] = {
    "generate": lambda llm: llm.generate(["a", "b"], PARAMS),
    "chat": lambda llm: llm.chat([{"role": "user", "content": "a"}], PARAMS),
    "embed": lambda llm: llm.embed("a"),
    "score": lambda llm: llm.score("a", "b"),
    "warmup": lambda llm: llm.warmup(),
    "cache_state": lambda llm: llm.cache_state(),
    "an invalid prompt": lambda llm: llm.generate("", PARAMS),
}


@for_each("case", CALLS)
def test_a_call_in_a_fork_raises_at_once(service: TextService, case: str) -> None:
    llm = LLM.from_service(service)
    assert run_in_fork(lambda: CALLS[case](llm)).startswith(MESSAGE)


def test_coroutines_in_a_fork_raise_at_once(service: TextService) -> None:
    llm = AsyncLLM.from_service(service)

    async def generate() -> None:
        async for _ in llm.generate("a", PARAMS):
            pass

    async def run_prepared() -> None:
        async for _ in llm.run([processor]):
            pass

    processor = service.prepare_completion("a", PARAMS)
    for scenario in (generate, run_prepared, lambda: llm.embed("a"), llm.cache_state):
        assert run_in_fork(lambda call=scenario: asyncio.run(call())).startswith(MESSAGE)


def test_a_stream_that_is_open_at_a_fork_goes_on_in_the_parent_alone(service: TextService) -> None:
    async def scenario() -> str:
        stream = AsyncLLM.from_service(service).generate("lift", PARAMS)
        first = await anext(stream)

        def leave() -> str:
            stream.close_soon()
            stream._close()
            return "left"

        assert run_in_fork(leave) == "left"
        return first.delta + "".join([output.delta async for output in stream])

    assert asyncio.run(scenario()) == text_of("lift", PARAMS)


def test_closing_in_a_fork_does_not_close_the_parents_engine_or_profile(tmp_path: Path) -> None:
    service = fake_service()
    profile = tmp_path / "profile.json"
    client = ProfilingClient(service.client, open_profile(profile))
    assert run_in_fork(client.close) is None
    assert run_in_fork(lambda: client.submit(None, print)).startswith(MESSAGE)  # type: ignore[arg-type]
    assert service.client.check_integrity() == []
    client.close()
    assert profile.read_text().startswith("[\n") and profile.read_text().count("process_name") == 2


def _generate(llm: LLM, results: Any) -> None:
    try:
        llm.generate("a", PARAMS, use_tqdm=False)
    except Exception as error:
        results.put(f"{type(error).__name__}: {error}")


def test_a_process_of_multiprocessing_that_is_forked_gets_the_error(service: TextService) -> None:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    process = context.Process(target=_generate, args=(LLM.from_service(service), results))
    process.start()
    try:
        assert results.get(timeout=60).startswith(MESSAGE)
        process.join(60)
        assert process.exitcode == 0
    finally:
        process.kill()


WHOLE = """
import os, sys
from chairlift import LLM, SamplingParams
params = SamplingParams(max_tokens=8, temperature=0)
llm = LLM("chairlift:demo", engine_mode=sys.argv[1], cpu_threads=2)
def text(model):
    return model.generate("chair", params, use_tqdm=False)[0].outputs[0].text
first = text(llm)
pid = os.fork()
if pid == 0:
    try:
        text(llm)
    except Exception as error:
        print("fork:", type(error).__name__, flush=True)
    llm.close()
    with LLM("chairlift:demo", engine_mode=sys.argv[1], cpu_threads=2) as own:
        print("own:", text(own) == first, flush=True)
    sys.exit(7)  # with the exit functions of Python
print("exit code:", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
print("parent:", text(llm) == first, flush=True)
"""


@pytest.mark.parametrize("engine_mode", ["inline", pytest.param("process", marks=pytest.mark.full)])
def test_a_fork_with_a_model_of_its_own_generates_and_the_parent_goes_on_after_its_end(engine_mode: str) -> None:
    done = run_process([sys.executable, "-c", WHOLE, engine_mode], modules=TORCH_MODULES, text=True, timeout=300)
    assert done.stdout.split("\n") == [
        "fork: EngineDead", "own: True", "exit code: 7", "parent: True", "",
    ], done.stderr[-3000:]  # fmt: skip
    assert done.returncode == 0

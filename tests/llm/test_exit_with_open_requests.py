"""LLM and AsyncLLM with an inline engine: an interpreter that exits with open requests ends without an abort."""

import subprocess
import sys

import pytest

START = """
import asyncio, threading
from chairlift import LLM, AsyncLLM, SamplingParams
params = SamplingParams(max_tokens=100, ignore_eos=True)
"""
SCRIPTS = {
    "LLM": """
llm = LLM(engine_mode="inline")
threading.Thread(target=lambda: llm.generate(["chair"] * 300, params), daemon=True).start()
while llm._service.client.load().running_requests == 0:
    pass
""",
    "AsyncLLM": """
async def main():
    llm = AsyncLLM(engine_mode="inline")
    streams = [llm.generate("chair", params) for _ in range(300)]
    iterators = [aiter(stream) for stream in streams]
    await asyncio.gather(*map(anext, iterators))
asyncio.run(main())
""",
    "AsyncLLM in a loop that stays open": """
async def main():
    llm = AsyncLLM(engine_mode="inline")
    stream = llm.generate("chair", params)
    iterator = aiter(stream)
    await anext(iterator)
    return llm, stream, iterator
loop = asyncio.new_event_loop()
kept = loop.run_until_complete(main())
""",
}


@pytest.mark.share(1)
@pytest.mark.parametrize("case", SCRIPTS)
def test_an_exit_with_open_requests_is_no_abort(case: str) -> None:
    script = START + SCRIPTS[case]
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]

"""A full pool takes no more memory than its configured share."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support_models import save_tiny

MIB = 2**20
ALLOWANCE_BYTES = 24 * MIB
"""Bytes that Python, the tokens and the allocator may take in addition."""

SCRIPT = """
import json, sys
import torch
from chairlift import LLM, SamplingParams
from chairlift.model.runner.free_memory import free_memory
torch.set_num_threads(1)
torch.ones(64, 64) @ torch.ones(64, 64)
folder, backend, pool = sys.argv[1], sys.argv[2], int(sys.argv[3])

def resident(what):  # of this process alone: rusage would count what its parent had when it forked
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(what)).split()[1])

share = pool / free_memory(torch.device("cpu")).num_bytes
with LLM(folder, attention_backend=backend, dtype="float32", max_memory=share, max_running_requests=96,
         max_batch_tokens=512, block_size=16) as llm:
    llm.generate([[9] * 20], SamplingParams(max_tokens=3), use_tqdm=False)  # loads what is loaded at first use
    idle, samples = resident("VmRSS"), []
    llm._service.client.watch_steps(lambda step: samples.append((step.allocated_kv_tokens, step.free_blocks)))
    prompts = [[8 + (7 * n + i) % 200 for i in range(260 + n)] for n in range(120)]
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=90, ignore_eos=True), use_tqdm=False)
    state = llm.cache_state()
    json.dump({
        "idle": idle, "peak": resident("VmHWM"), "free": min(free for _, free in samples), "report": llm.startup_report,
        "total": state["total_blocks"], "wrong": llm.check_integrity(),
        "tokens": sum(len(output.outputs[0].token_ids) for output in outputs),
    }, sys.stdout)
"""


@pytest.mark.full
@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_a_full_pool_takes_no_more_than_its_promised_share(tmp_path: Path, backend: str) -> None:
    folder, pool = save_tiny("llama", tmp_path, 0), 24 * MIB  # 2,048 blocks
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), backend, str(pool)], capture_output=True, text=True, timeout=200
    )
    assert process.returncode == 0, process.stderr
    measured = json.loads(process.stdout)
    assert measured["wrong"] == [] and measured["tokens"] == 120 * 90
    assert measured["free"] <= 0.1 * measured["total"], "the pool was not full"
    limit = pool + step_bytes(measured["report"]["memory of a step"])
    assert measured["peak"] - measured["idle"] <= limit + ALLOWANCE_BYTES, measured
    assert measured["peak"] - measured["idle"] >= pool / 2, "the test measures the wrong memory"


def step_bytes(text: str) -> float:
    """Parse a size such as "19.7 MiB (estimated from above)"."""
    amount, unit = text.split()[:2]
    return float(amount) * {"MiB": MIB, "GiB": 1024 * MIB}[unit]

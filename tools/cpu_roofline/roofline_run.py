"""measure(): one run in a fresh process, with the machine's peaks measured shortly before and after each part.

    python -m cpu_roofline.roofline_run SPEC.json RESULT.json

Prefix caching is off, so that no part reuses another part's KV cache.
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import torch

from chairlift.bench.offline.child_process import exit_with_parent
from chairlift.bench.offline.driver import drive_workload
from chairlift.bench.offline.warm_up import warm_up
from chairlift.bench.workload.generators import generate
from chairlift.bench.workload.workload import Workload, WorkloadRequest
from chairlift.llm.build import prepare
from chairlift.llm.options import Options
from chairlift.llm.text_service import TextService
from chairlift.model.device.dtypes import dtype_bytes, torch_dtype
from chairlift.model.kernels.cpu.kernel_cpus import chosen_cpus
from cpu_roofline.attention_timing import decode_seconds
from cpu_roofline.hardware_peaks import Reader, peak_gflops
from cpu_roofline.model_flops import Shape, flops
from cpu_roofline.runner_timing import watching

SINGLE_STREAM_TOKENS = (64, 24)
"""Prompt and output tokens of the single stream."""

NUM_ROUNDS = 6
"""Runs of the single stream; the memory bandwidth is measured before and after each."""

ATTENTION_BATCH = (32, 2048)
"""Sequences and context length of the decode step whose attention is measured."""


def measure(model: str, options: dict[str, Any]) -> dict[str, Any]:
    """Measure all parts once for a model folder and engine options. Raises ConfigError and ModelError."""
    dtype = str(options["dtype"])
    shape = Shape.of(json.loads(Path(model, "config.json").read_text(encoding="utf-8")), dtype_bytes(dtype))
    cpus = chosen_cpus(options.get("cpu_threads"))
    with tempfile.TemporaryDirectory(prefix="cpu-roofline-") as folder:
        reader = Reader(Path(folder), cpus)
        prepared = prepare(model, cast("Options", {**options, "enable_prefix_caching": False}))
        with closing((service := prepared.start()).client):
            warm_up(service)
            w1 = _measure_w1(service, shape, dtype, cpus)
            single = _measure_single_stream(service, shape, reader)
        return {**w1, **single, **_measure_attention(shape, torch_dtype(dtype), reader)}


def _measure_w1(service: TextService, shape: Shape, dtype: str, cpus: Sequence[int]) -> dict[str, Any]:
    """Measure workload W1 and the peak speed of matrix products."""
    workload = generate("w1", vocab_size=shape.vocabulary, seed=0)
    before = peak_gflops(cpus, shape.products, dtype)
    with watching(service.client) as timing:
        driven = drive_workload(service, workload)
    after = peak_gflops(cpus, shape.products, dtype)
    return {
        "w1": {
            "seconds": driven.seconds,
            "output_tokens_per_second": workload.output_tokens / driven.seconds,
            "flops": flops(shape, workload.items),
            "peak_gflops": [before, after],
            "parts": timing.parts(driven.seconds),
        }
    }


def _measure_single_stream(service: TextService, shape: Shape, reader: Reader) -> dict[str, Any]:
    """Measure one stream, and the time of reading all weights and its KV cache once per token."""
    num_prompt_tokens, num_output_tokens = SINGLE_STREAM_TOKENS
    item = WorkloadRequest(at=0.0, prompt_token_ids=tuple(range(num_prompt_tokens)), output_tokens=num_output_tokens)
    rounds, before = [], reader.rate()
    with watching(service.client) as timing:
        for _ in range(NUM_ROUNDS):
            (record,) = drive_workload(service, Workload(name="single", seed=0, items=(item,))).records
            after = reader.rate()
            rounds.append(((record.stamps[-1] - record.stamps[0]) / (num_output_tokens - 1), (before + after) / 2))
            before = after
    bytes_per_token = timing.weight_bytes + shape.kv_bytes(num_prompt_tokens + num_output_tokens // 2)
    seconds_and_floor = [(seconds, bytes_per_token / rate / 1e9) for seconds, rate in rounds]
    return {"single": {"bytes_per_token": bytes_per_token, "seconds_and_floor": seconds_and_floor}}


def _measure_attention(shape: Shape, dtype: torch.dtype, reader: Reader) -> dict[str, Any]:
    """Measure the attention of one layer, and the time of reading its KV cache."""
    num_sequences, context_length = ATTENTION_BATCH
    bytes_per_layer = shape.kv_bytes(num_sequences * context_length) // shape.layers
    pairs = decode_seconds(shape, num_sequences, context_length, dtype, reader)
    return {"attention": {"bytes_per_layer": bytes_per_layer, "seconds_and_floor": pairs}}


def main(args: Sequence[str]) -> int:
    """Run measure() with the arguments in a JSON file and write its result."""
    spec_path, result_path = map(Path, args)
    result = measure(**json.loads(spec_path.read_text(encoding="utf-8")))
    result_path.write_text(json.dumps(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    exit_with_parent()
    sys.exit(main(sys.argv[1:]))

"""Turn: one measurement in a fresh process, peaks and what is held against them close together.

    python -m cpu_roofline.measurement ASKED.json RESULT.json

Prefixes are not cached: nothing that one measurement keeps is there for the next.
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

from chairlift.bench.offline.driver import drive_workload
from chairlift.bench.offline.offline_benchmark import warm_up
from chairlift.bench.offline.subprocess_run import exit_with_parent
from chairlift.bench.workload.generators import generate
from chairlift.bench.workload.workload import Workload, WorkloadRequest
from chairlift.llm.build import prepare
from chairlift.llm.options import Options
from chairlift.llm.text_service import TextService
from chairlift.model.kernels.cpu.threads import chosen_cpus
from cpu_roofline.attention import decode_seconds
from cpu_roofline.flops import Shape, flops
from cpu_roofline.peaks import Reader, products
from cpu_roofline.runner_timing import watching

SINGLE = (64, 24)
"""Prompt and output tokens of the stream that rides alone."""

ROUNDS = 6
"""Of that stream, with reading before and after each."""

ATTENTION = (32, 2048)
"""Sequences and context of the decode step whose attention is measured."""


def measure(model: str, options: dict[str, Any]) -> dict[str, Any]:
    """Measure everything once. Raises ConfigError and ModelError."""
    shape = Shape.of(json.loads(Path(model, "config.json").read_text(encoding="utf-8")))
    cpus = chosen_cpus(options.get("cpu_threads"))
    with tempfile.TemporaryDirectory(prefix="cpu-roofline-") as folder:
        reader = Reader(Path(folder), cpus)
        prepared = prepare(model, cast("Options", {**options, "enable_prefix_caching": False}))
        with closing((service := prepared.start()).client):
            service.client.warmup()
            warm_up(service)
            whole = _whole(service, shape, cpus)
            single = _single(service, shape, reader)
        return {**whole, **single, **_attention(shape, reader)}


def _whole(service: TextService, shape: Shape, cpus: Sequence[int]) -> dict[str, Any]:
    """W1: the whole workload against the products' peak."""
    workload = generate("w1", vocab_size=shape.vocabulary, seed=0)
    before = products(cpus, shape.products)
    with watching(service.client) as spent:
        driven = drive_workload(service, workload)
    after = products(cpus, shape.products)
    return {
        "w1": {
            "seconds": driven.seconds,
            "output_tokens_per_second": workload.output_tokens / driven.seconds,
            "flops": flops(shape, workload.items),
            "peak_gflops": [before, after],
            "parts": spent.parts(driven.seconds),
        }
    }


def _single(service: TextService, shape: Shape, reader: Reader) -> dict[str, Any]:
    """One stream against reading all weights, and what it keeps, once a token."""
    prompt, output = SINGLE
    item = WorkloadRequest(at=0.0, prompt_token_ids=tuple(range(prompt)), output_tokens=output)
    rounds, before = [], reader.rate()
    with watching(service.client) as spent:
        for _ in range(ROUNDS):
            (record,) = drive_workload(service, Workload(name="single", seed=0, items=(item,))).records
            after = reader.rate()
            rounds.append(((record.stamps[-1] - record.stamps[0]) / (output - 1), (before + after) / 2))
            before = after
    bytes_per_token = spent.weight_bytes + shape.kv_bytes(prompt + output // 2)
    floors = [(seconds, bytes_per_token / rate / 1e9) for seconds, rate in rounds]
    return {"single": {"bytes_per_token": bytes_per_token, "seconds_and_floor": floors}}


def _attention(shape: Shape, reader: Reader) -> dict[str, Any]:
    sequences, context = ATTENTION
    bytes_per_layer = shape.kv_bytes(sequences * context) // shape.layers
    pairs = decode_seconds(shape, sequences, context, reader)
    return {"attention": {"bytes_per_layer": bytes_per_layer, "seconds_and_floor": pairs}}


def main(words: Sequence[str]) -> int:
    """Obey what is asked in a file."""
    asked, result = map(Path, words)
    found = measure(**json.loads(asked.read_text(encoding="utf-8")))
    result.write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    exit_with_parent()
    sys.exit(main(sys.argv[1:]))

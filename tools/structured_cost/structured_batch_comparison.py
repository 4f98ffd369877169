"""measure: compares a batch without schemas to the same batch with schemas for half of it.

All requests are greedy and equally long, because the schemas describe lists that cannot end earlier. Each request has
its own schema in each round, so the measured time includes grammar compilation.
"""

import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from chairlift.bench.offline.driver import drive_workload
from chairlift.bench.offline.request_records import summarize_requests
from chairlift.bench.offline.torch_threads_and_peak_memory import peak_memory, threads
from chairlift.bench.workload.generators import generate
from chairlift.bench.workload.workload import Workload, WorkloadRequest
from chairlift.core.structured_output import StructuredOutput
from chairlift.llm.build import PreparedService
from chairlift.llm.text_service import TextService

SUMMARY_FIELDS = ("seconds", "output_tokens_per_second", "itl_seconds", "latency_seconds", "requests")


def measure(
    prepared: PreparedService, *, requests: int, output_tokens: int, repeat: int, seed: int = 0,
    note: Callable[[str], None] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Load the model and run both batches `repeat` times; their order alternates.

    Returns ratio: median over the rounds of the output throughput with schemas over that without. by_turn: those
    ratios. plain, structured: the results of each run.
    Raises what loading the model raises.
    """
    say = note or (lambda line: None)
    service = prepared.start()
    try:
        _run(service, _batches(service, 8, 4, seed, round_number=-1)[1])  # starts every grammar worker
        plain: list[dict[str, Any]] = []
        structured: list[dict[str, Any]] = []
        for round_number in range(repeat):
            pair = list(
                zip((plain, structured), _batches(service, requests, output_tokens, seed, round_number), strict=True)
            )
            for results, workload in pair if round_number % 2 == 0 else reversed(pair):
                results.append(_run(service, workload))
                speed = results[-1]["output_tokens_per_second"]
                say(f"round {round_number + 1} of {repeat}: {workload.name} {speed:.1f} output tokens/s")
        integrity_errors = service.client.check_integrity()
    finally:
        service.client.close()
    by_turn = [
        with_schemas["output_tokens_per_second"] / without["output_tokens_per_second"]
        for with_schemas, without in zip(structured, plain, strict=True)
    ]
    return {
        "ratio": statistics.median(by_turn),
        "by_turn": by_turn,
        "plain": plain,
        "structured": structured,
        "seed": seed,
        "output_tokens": output_tokens,
        "integrity_errors": integrity_errors,
        "threads": threads(),
        "peak_memory_bytes": peak_memory(),
    }


def schema(number: int) -> dict[str, Any]:
    """Return the schema of one request: a list with more records than any output reaches."""
    record = {
        "type": "object",
        "properties": {
            f"name {number}": {"type": "string", "maxLength": 40},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "mail": {"type": "string", "pattern": "^[a-z]{2,12}@[a-z]{2,12}\\.(org|net)$"},
            "kind": {"enum": ["admin", "staff", "guide", None]},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 1, "maxItems": 4},
        },
        "required": [f"name {number}", "age", "mail", "kind", "tags"],
        "additionalProperties": False,
    }
    return {"type": "array", "items": record, "minItems": 100_000}


def _batches(
    service: TextService, requests: int, output_tokens: int, seed: int, round_number: int
) -> tuple[Workload, Workload]:
    """Return the batch without schemas, and the same batch with a schema for every second request."""
    workload = generate("uniform", vocab_size=service.client.limits.vocab_size, seed=seed, count=requests)
    items = [replace(item, output_tokens=output_tokens) for item in workload.items]
    half = [
        _under_schema(item, round_number * requests + index) if index % 2 else item for index, item in enumerate(items)
    ]
    return replace(workload, name="plain", items=tuple(items)), replace(workload, name="structured", items=tuple(half))


def _under_schema(item: WorkloadRequest, number: int) -> WorkloadRequest:
    return replace(item, structured=StructuredOutput(json_schema=schema(number)))


def _run(service: TextService, workload: Workload) -> dict[str, Any]:
    service.client.flush_cache()
    result = drive_workload(service, workload)
    summary = summarize_requests(result.records, result.seconds)
    return {name: summary[name] for name in SUMMARY_FIELDS}

"""Structured: what masks cost. A batch without structures and the same with half of it under schemas take turns.

Every request of both is greedy and as long as the other's: the schemas are of lists that do not end before that. Each
request has a schema of its own in each turn, so that compiling them is part of what is measured.
"""

import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from chairlift.bench.offline.driver import drive_workload
from chairlift.bench.offline.offline_benchmark import peak_memory, threads
from chairlift.bench.offline.request_records import summarize_requests
from chairlift.bench.workload.generators import generate
from chairlift.bench.workload.workload import Workload, WorkloadRequest
from chairlift.core.structured_output import StructuredOutput
from chairlift.llm.build import PreparedService
from chairlift.llm.text_service import TextService

KEPT = ("seconds", "output_tokens_per_second", "itl_seconds", "latency_seconds", "requests")


def measure(
    prepared: PreparedService, *, requests: int, output_tokens: int, repeat: int, seed: int = 0,
    note: Callable[[str], None] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Load the model and run both batches `repeat` times, each first in every other turn.

    ratio: median over the turns of the throughput of the batch with schemas over that of the one without, in output
    tokens a second. by_turn: those ratios. plain, structured: what each run saw. Raises what loading the model raises.
    """
    say = note or (lambda line: None)
    service = prepared.start()
    try:
        _run(service, _batches(service, 8, 4, seed, turn=-1)[1])  # so that every checker is there
        plain: list[dict[str, Any]] = []
        structured: list[dict[str, Any]] = []
        for turn in range(repeat):
            pair = list(zip((plain, structured), _batches(service, requests, output_tokens, seed, turn), strict=True))
            for found, workload in pair if turn % 2 == 0 else reversed(pair):
                found.append(_run(service, workload))
                speed = found[-1]["output_tokens_per_second"]
                say(f"turn {turn + 1} of {repeat}: {workload.name} {speed:.1f} output tokens/s")
        integrity_errors = service.client.check_integrity()
    finally:
        service.client.close()
    by_turn = [
        ours["output_tokens_per_second"] / theirs["output_tokens_per_second"]
        for ours, theirs in zip(structured, plain, strict=True)
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
    """Return the schema of one request: a list of records, longer than anybody writes."""
    record = {
        "type": "object",
        "properties": {
            f"name {number}": {"type": "string", "maxLength": 40},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "mail": {"type": "string", "pattern": "^[a-z]{2,12}@[a-z]{2,12}\\.(org|net)$"},
            "kind": {"enum": ["rider", "guest", "guide", None]},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 1, "maxItems": 4},
        },
        "required": [f"name {number}", "age", "mail", "kind", "tags"],
        "additionalProperties": False,
    }
    return {"type": "array", "items": record, "minItems": 100_000}


def _batches(
    service: TextService, requests: int, output_tokens: int, seed: int, turn: int
) -> tuple[Workload, Workload]:
    """Return the batch without structure, and the one that differs in that every other request has a schema."""
    drawn = generate("uniform", vocab_size=service.client.limits.vocab_size, seed=seed, count=requests)
    items = [replace(item, output_tokens=output_tokens) for item in drawn.items]
    half = [_under_schema(item, turn * requests + place) if place % 2 else item for place, item in enumerate(items)]
    return replace(drawn, name="plain", items=tuple(items)), replace(drawn, name="structured", items=tuple(half))


def _under_schema(item: WorkloadRequest, number: int) -> WorkloadRequest:
    return replace(item, structured=StructuredOutput(json_schema=schema(number)))


def _run(service: TextService, workload: Workload) -> dict[str, Any]:
    service.client.flush_cache()
    driven = drive_workload(service, workload)
    found = summarize_requests(driven.rides, driven.seconds)
    return {name: found[name] for name in KEPT}

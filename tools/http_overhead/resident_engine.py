"""`python -m http_overhead.resident_engine SPEC`: an engine process that runs a workload for each seed it reads.

SPEC is JSON: {"model": ..., "options": {...}, "workload": ..., "vocab_size": ...}. For each line with a seed on
standard input, the process writes a line with the output tokens per second.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any, TextIO

from chairlift.bench.offline.driver import drive_workload
from chairlift.bench.offline.run_spec import WorkloadSpec
from chairlift.bench.offline.warm_up import warm_up
from chairlift.llm.build import prepare


def run_seeds(spec: Mapping[str, Any], seeds: Iterable[str], out: TextIO) -> None:
    """Write "ready", then run the workload for each seed; the prefix cache is flushed after each run."""
    service = prepare(spec["model"], spec["options"]).start()
    with closing(service.client) as client:
        warm_up(service)
        print("ready", file=out, flush=True)
        for seed in seeds:
            workload = WorkloadSpec(name=spec["workload"], seed=int(seed)).make(spec["vocab_size"])
            driven = drive_workload(service, workload)
            tokens = sum(item.output_tokens for item in workload.items)
            print(tokens / driven.seconds, file=out, flush=True)
            client.flush_cache()


if __name__ == "__main__":
    run_seeds(json.loads(sys.argv[1]), sys.stdin, sys.stdout)

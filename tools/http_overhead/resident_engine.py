"""`python -m http_overhead.resident_engine ORDER`: an engine that runs a workload with each seed that it is sent.

ORDER is JSON: {"model": ..., "options": {...}, "workload": ..., "vocab_size": ...}. A line with a seed is answered by
one with the output tokens per second.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any, TextIO

from chairlift.bench.offline.driver import drive_workload
from chairlift.bench.offline.offline_benchmark import warm_up
from chairlift.bench.offline.run_spec import WorkloadSpec
from chairlift.llm.build import prepare


def serve(order: Mapping[str, Any], seeds: Iterable[str], out: TextIO) -> None:
    """Say "ready", then answer each seed; blocks of one run are forgotten before the next."""
    service = prepare(order["model"], order["options"]).start()
    with closing(service.client) as client:
        client.warmup()
        warm_up(service)
        print("ready", file=out, flush=True)
        for seed in seeds:
            workload = WorkloadSpec(name=order["workload"], seed=int(seed)).make(order["vocab_size"])
            driven = drive_workload(service, workload)
            tokens = sum(item.output_tokens for item in workload.items)
            print(tokens / driven.seconds, file=out, flush=True)
            client.flush_cache()


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]), sys.stdin, sys.stdout)

"""Offline: one run of the real engine on a workload, without HTTP; in this process, or as a program of its own.

    python -m chairlift.bench.offline.offline_benchmark ORDER.json RESULT.json

is how arms that are compared run: each repetition in a fresh process, as every peer does.
"""

import resource
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, cast

from chairlift.bench.offline.driver import DriveResult, Note, drive_workload
from chairlift.bench.offline.request_records import summarize_requests
from chairlift.bench.offline.run_spec import RunSpec
from chairlift.bench.offline.step_records import StepRecorder
from chairlift.bench.offline.subprocess_run import exit_with_parent, run_child
from chairlift.bench.workload.workload import Workload, WorkloadRequest
from chairlift.llm.build import PreparedService, prepare
from chairlift.llm.options import Options
from chairlift.llm.text_service import TextService

WARM_UP = (8, 48, 4)
"""Requests, prompt tokens and output tokens before the clock starts, so that nobody measures what happens once."""

HIDDEN_ROWS = ("model", "free memory")
"""Rows of the runner's report that tell of the machine's folders."""


def measure(order: RunSpec, note: Note | None = None) -> dict[str, Any]:
    """Load the model, warm up, run the workload; returns what was seen (see report.py for the fields).

    Raises ConfigError, ModelError, and InvalidRequest when a request of the workload can never be served.
    """
    prepared = prepare(order.model, cast("Options", dict(order.options)))
    service = prepared.start()
    try:
        workload = order.workload.make(service.client.limits.vocab_size)
        service.client.warmup()
        warm_up(service)
        info = service.client.info
        watch = StepRecorder(info.num_blocks * info.block_size)
        before = service.client.load()
        service.client.watch_steps(watch)
        driven = drive_workload(service, workload, note)
        service.client.watch_steps(None)
        seen = _seen(prepared, service, workload, driven, watch, before.preemptions)
    finally:
        service.client.close()
    return {**seen, "threads": threads(), "peak_memory_bytes": peak_memory()}


def warm_up(service: TextService) -> None:
    """Run a few short requests as far as they fit, and forget their blocks."""
    _, prompt, output = WARM_UP
    limits = service.client.limits
    prompt = max(1, min(prompt, limits.max_output_tokens(0) - output))
    if limits.max_output_tokens(prompt) < output:
        return
    drive_workload(service, Workload(name="warm-up", seed=0, items=warm_up_items(prompt, limits.vocab_size)))
    service.client.flush_cache()


def warm_up_items(prompt_tokens: int, vocab_size: int) -> tuple[WorkloadRequest, ...]:
    """Return the requests of the warm-up; no two have a prefix in common, where the vocabulary has room."""
    requests, _, output = WARM_UP
    prompts = [tuple((first + place) % vocab_size for place in range(prompt_tokens)) for first in range(requests)]
    return tuple(WorkloadRequest(at=0.0, prompt_token_ids=prompt, output_tokens=output) for prompt in prompts)


def _seen(
    prepared: PreparedService,
    service: TextService,
    workload: Workload,
    driven: DriveResult,
    watch: StepRecorder,
    preemptions: int,
) -> dict[str, Any]:
    info = service.client.info
    return {
        **summarize_requests(driven.rides, driven.seconds),
        **watch.summarize(driven.began, preemptions),
        **workload.summary(),
        "engine": {
            **asdict(prepared.scheduler),
            "enable_prefix_caching": prepared.caching,
            "client": prepared.client,
            "num_blocks": info.num_blocks,
            "block_size": info.block_size,
            "runner": {
                name: value for name, value in info.startup_report if name not in HIDDEN_ROWS and "/" not in value
            },
        },
        "vocab_size": info.vocab_size,
        "integrity_errors": service.client.check_integrity(),
    }


def threads() -> int:
    """Threads that torch computes with here."""
    import torch

    return torch.get_num_threads()


def peak_memory() -> int:
    """Peak resident bytes of this process, or of the largest of its children that have ended."""
    unit = 1 if sys.platform == "darwin" else 1024
    own, children = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    return unit * max(resource.getrusage(who).ru_maxrss for who in (own, children))


def main(words: Sequence[str]) -> int:
    """Obey an order from a file."""
    return run_child(words, measure)


if __name__ == "__main__":
    exit_with_parent()
    sys.exit(main(sys.argv[1:]))

"""Offline benchmark: one run of the real engine on a workload, without HTTP, in this process or as a program.

    python -m chairlift.bench.offline.offline_benchmark SPEC.json RESULT.json

A comparison runs each repetition of each arm as this program, in a fresh process, and the peers likewise.
"""

import resource
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, cast

from chairlift.bench.offline.child_process import exit_with_parent, run_child
from chairlift.bench.offline.driver import DriveResult, ProgressCallback, drive_workload
from chairlift.bench.offline.request_records import summarize_requests
from chairlift.bench.offline.run_spec import RunSpec
from chairlift.bench.offline.step_recorder import StepRecorder
from chairlift.bench.workload.workload import Workload, WorkloadRequest
from chairlift.llm.build import PreparedService, prepare
from chairlift.llm.options import Options
from chairlift.llm.text_service import TextService

WARM_UP = (8, 48, 4)
"""Requests, prompt tokens and output tokens of the warm-up, which keeps one-time costs out of the measurement."""

HIDDEN_ROWS = ("model", "free memory")
"""Rows of the runner's startup report that are left out, because they name folders of the machine."""


def measure(spec: RunSpec, note: ProgressCallback | None = None) -> dict[str, Any]:
    """Load the model, warm up and run the workload.

    Returns the run's results; report.py lists the fields.
    Raises ConfigError, ModelError, and InvalidRequest when a request of the workload can never be served.
    """
    prepared = prepare(spec.model, cast("Options", dict(spec.options)))
    service = prepared.start()
    try:
        workload = spec.workload.make(service.client.limits.vocab_size)
        service.client.warmup()
        warm_up(service)
        info = service.client.info
        recorder = StepRecorder(info.num_blocks * info.block_size)
        before = service.client.load()
        service.client.watch_steps(recorder)
        result = drive_workload(service, workload, note)
        service.client.watch_steps(None)
        run_report = _run_report(prepared, service, workload, result, recorder, before.preemptions)
    finally:
        service.client.close()
    return {**run_report, "threads": threads(), "peak_memory_bytes": peak_memory()}


def warm_up(service: TextService) -> None:
    """Run a few short requests if they fit the context, and flush the prefix cache."""
    _, prompt, output = WARM_UP
    limits = service.client.limits
    prompt = max(1, min(prompt, limits.max_output_tokens(0) - output))
    if limits.max_output_tokens(prompt) < output:
        return
    drive_workload(service, Workload(name="warm-up", seed=0, items=warm_up_items(prompt, limits.vocab_size)))
    service.client.flush_cache()


def warm_up_items(prompt_tokens: int, vocab_size: int) -> tuple[WorkloadRequest, ...]:
    """Return the requests of the warm-up; no two share a prefix if the vocabulary is large enough."""
    requests, _, output = WARM_UP
    prompts = [tuple((first + offset) % vocab_size for offset in range(prompt_tokens)) for first in range(requests)]
    return tuple(WorkloadRequest(at=0.0, prompt_token_ids=prompt, output_tokens=output) for prompt in prompts)


def _run_report(
    prepared: PreparedService,
    service: TextService,
    workload: Workload,
    result: DriveResult,
    recorder: StepRecorder,
    preemptions: int,
) -> dict[str, Any]:
    info = service.client.info
    return {
        **summarize_requests(result.records, result.seconds),
        **recorder.summarize(result.started_at, preemptions),
        **workload.summary(),
        "engine": {
            **asdict(prepared.scheduler),
            "enable_prefix_caching": prepared.caching,
            "engine_mode": prepared.engine_mode,
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
    """Return the number of threads that torch computes with in this process."""
    import torch

    return torch.get_num_threads()


def peak_memory() -> int:
    """Return the larger of this process's and its largest ended child's peak resident bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    own, children = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    return unit * max(resource.getrusage(scope).ru_maxrss for scope in (own, children))


def main(arguments: Sequence[str]) -> int:
    """Run the specification in a file; returns the exit code."""
    return run_child(arguments, measure)


if __name__ == "__main__":
    exit_with_parent()
    sys.exit(main(sys.argv[1:]))

"""Offline benchmark: one run of the real engine on a workload, without HTTP, in this process or as a program.

    python -m chairlift.bench.offline.offline_benchmark SPEC.json RESULT.json

A comparison runs each repetition of each arm as this program, in a fresh process, and the peers likewise.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, cast

from chairlift.bench.offline.child_process import exit_with_parent, run_child
from chairlift.bench.offline.driver import DriveResult, ProgressCallback, drive_workload
from chairlift.bench.offline.request_records import summarize_requests
from chairlift.bench.offline.run_spec import RunSpec
from chairlift.bench.offline.step_recorder import StepRecorder
from chairlift.bench.offline.torch_threads_and_peak_memory import peak_memory, threads
from chairlift.bench.offline.warm_up import warm_up
from chairlift.bench.workload.workload import Workload
from chairlift.llm.build import PreparedService, prepare
from chairlift.llm.options import Options
from chairlift.llm.text_service import TextService

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


def main(arguments: Sequence[str]) -> int:
    """Run the specification in a file; returns the exit code."""
    return run_child(arguments, measure)


if __name__ == "__main__":
    exit_with_parent()
    sys.exit(main(sys.argv[1:]))

"""workload_of, run_report: the workload that a peer runs, and the fields of its report."""

import os
from typing import Any

from chairlift.bench.offline.request_records import RequestRecord, summarize_requests
from chairlift.bench.offline.run_spec import RunSpec
from chairlift.bench.offline.subprocess_run import THREAD_VARIABLES
from chairlift.bench.report import model_size_fields
from chairlift.bench.report.redaction import redacted_model
from chairlift.bench.workload.workload import Workload
from chairlift.core.cpu_affinity_and_priority import usable_cpus
from chairlift.core.errors import ConfigError, ModelError

SPARE_TOKENS = 16
"""Tokens beyond the longest request in the context length that a peer is opened with."""


def cpus() -> list[int]:
    """Return the cores that this process may use, at most as many as OMP_NUM_THREADS allows threads."""
    usable = sorted(usable_cpus())
    limit = os.environ.get(THREAD_VARIABLES[0], "")
    return usable[: int(limit)] if limit.isdigit() and int(limit) else usable


def workload_of(spec: RunSpec) -> tuple[Workload, int]:
    """Return the workload of a specification, and the vocabulary size from the model's config.json.

    Raises ModelError when config.json has no vocabulary size, ConfigError when the requests do not arrive all at once.
    """
    shape = model_size_fields.model_shape(spec.model)
    if shape is None or "vocab_size" not in shape:
        raise ModelError(f"{redacted_model(spec.model)} has no config.json with a vocab_size")
    vocab_size = int(shape["vocab_size"])
    workload = spec.workload.make(vocab_size)
    if not workload.arrives_at_once:
        raise ConfigError("peers run only workloads whose requests arrive all at once")
    return workload, vocab_size


def max_request_tokens(workload: Workload) -> int:
    """Return the tokens of the longest request, prompt and output, plus SPARE_TOKENS."""
    return max(len(item.prompt_token_ids) + item.output_tokens for item in workload.items) + SPARE_TOKENS


def run_report(workload: Workload, vocab_size: int, records: list[RequestRecord], seconds: float) -> dict[str, Any]:
    """Return the fields of a run that every arm reports."""
    return {
        **summarize_requests(records, seconds),
        **workload.summary(),
        "vocab_size": vocab_size,
        "threads": len(cpus()),
    }

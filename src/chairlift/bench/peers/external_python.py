"""External Python: runs a specification on an engine that is installed in another Python.

    python -m chairlift.bench.peers.external_python vllm|openvino SPEC.json RESULT.json

translates the specification into a task of external_main.py, and its result into the fields of a run.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chairlift.bench.offline.child_process import exit_with_parent, run_child
from chairlift.bench.offline.offline_benchmark import WARM_UP, warm_up_items
from chairlift.bench.offline.request_records import RequestRecord, summarize_requests
from chairlift.bench.offline.run_spec import RunSpec
from chairlift.bench.offline.subprocess_run import THREAD_VARIABLES, exchange
from chairlift.bench.report import environment
from chairlift.bench.workload.workload import Workload, WorkloadRequest
from chairlift.core.cpu_affinity import usable_cpus
from chairlift.core.errors import ConfigError, ModelError
from chairlift.llm.builtin_models import embedded_folder

EXTERNAL_MAIN = Path(__file__).with_name("external_main.py")
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
    shape = environment.model_shape(spec.model)
    if shape is None or "vocab_size" not in shape:
        raise ModelError(f"{environment.redacted_model(spec.model)} has no config.json with a vocab_size")
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


def dtype_of(spec: RunSpec) -> str:
    """Return the requested dtype, or else the one in the model's config.json."""
    if (requested := str(spec.options.get("dtype", "auto"))) != "auto":
        return requested
    config = json.loads((_folder(spec) / "config.json").read_text(encoding="utf-8"))
    return str(config.get("dtype") or config.get("torch_dtype") or "float32")


def measure(engine: str, spec: RunSpec) -> dict[str, Any]:
    """Run a specification in another Python.

    Raises ConfigError, ModelError, and ChairliftError when the other program fails.
    """
    workload, vocab_size = workload_of(spec)
    task = {
        "model": str(_folder(spec)),
        "dtype": dtype_of(spec),
        "threads": len(cpus()),
        "cpus": cpus(),
        "longest": max_request_tokens(workload),
        "settings": spec.settings,
        "warm_up": _as_json(warm_up_items(WARM_UP[1], vocab_size)),
        "requests": _as_json(workload.items),
    }
    python = str(Path(spec.settings.get("python", sys.executable)).expanduser())
    # Its standard error goes to this process's, the end of which the parent reports when the run fails.
    result = exchange([python, "-I", str(EXTERNAL_MAIN), engine], json.dumps(task).encode(), shown=True)
    records = [
        _record_of(item, result_entry) for item, result_entry in zip(workload.items, result["records"], strict=True)
    ]
    return {
        **run_report(workload, vocab_size, records, result["seconds"]),
        "engine": {**result["engine"], "settings": environment.shown_options(spec.settings)},
        "peak_memory_bytes": result["peak_memory_bytes"],
    }


def _folder(spec: RunSpec) -> Path:
    return embedded_folder(spec.model) or Path(str(spec.model)).expanduser()


def _as_json(items: Sequence[WorkloadRequest]) -> list[dict[str, Any]]:
    return [{"prompt": list(item.prompt_token_ids), "tokens": item.output_tokens} for item in items]


def _record_of(item: WorkloadRequest, result_entry: Mapping[str, Any]) -> RequestRecord:
    stamps, count = list(result_entry["stamps"]), int(result_entry["tokens"])
    ended = stamps[-1] if stamps else None
    return RequestRecord(item, stamps, count, ended=ended)


ENGINES = ("vllm", "openvino")


def main(arguments: Sequence[str]) -> int:
    """Run the specification in a file on the engine of the first argument; return the exit code."""
    engine, *files = arguments
    assert engine in ENGINES
    return run_child(files, lambda spec: measure(engine, spec))


if __name__ == "__main__":
    exit_with_parent()
    sys.exit(main(sys.argv[1:]))

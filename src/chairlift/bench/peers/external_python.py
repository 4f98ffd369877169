"""External Python: runs a specification on an engine that is installed in another Python.

    python -m chairlift.bench.peers.external_python vllm|openvino SPEC.json RESULT.json

translates the specification into a task of external_main.py, and its result into the fields of a run.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chairlift.bench.offline.child_process import exit_with_parent, run_child
from chairlift.bench.offline.request_records import RequestRecord
from chairlift.bench.offline.run_spec import RunSpec
from chairlift.bench.offline.subprocess_run import exchange
from chairlift.bench.offline.warm_up import WARM_UP, warm_up_items
from chairlift.bench.peers.peer_workload_and_report import cpus, max_request_tokens, run_report, workload_of
from chairlift.bench.report.redaction import shown_options
from chairlift.bench.workload.workload import WorkloadRequest
from chairlift.llm.builtin_models import embedded_folder

EXTERNAL_MAIN = Path(__file__).with_name("external_main.py")


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
        "engine": {**result["engine"], "settings": shown_options(spec.settings)},
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

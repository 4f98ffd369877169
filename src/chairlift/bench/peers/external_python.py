"""Errands: an order carried to an engine that lives in another Python.

    python -m chairlift.bench.peers.external_python vllm|openvino ORDER.json RESULT.json

spells it out for `outside`, and puts the result into our words.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chairlift.bench.offline.offline_benchmark import WARM_UP, warm_up_items
from chairlift.bench.offline.request_records import RequestRecord, summarize_requests
from chairlift.bench.offline.run_spec import RunSpec
from chairlift.bench.offline.subprocess_run import THREAD_VARIABLES, exchange, exit_with_parent, run_child
from chairlift.bench.report import environment
from chairlift.bench.workload.workload import Workload, WorkloadRequest
from chairlift.core.cpu_affinity import usable_cpus
from chairlift.core.errors import ConfigError, ModelError
from chairlift.llm.model_names import embedded_folder

OUTSIDE = Path(__file__).with_name("external_main.py")
SPARE_TOKENS = 16
"""Beyond the longest request, in the length that a peer is opened for."""


def cpus() -> list[int]:
    """Return the cores that this process may use, as many as its libraries were told to have threads."""
    usable = sorted(usable_cpus())
    told = os.environ.get(THREAD_VARIABLES[0], "")
    return usable[: int(told)] if told.isdigit() and int(told) else usable


def workload_of(order: RunSpec) -> tuple[Workload, int]:
    """Return the workload that an order asks for, and the vocabulary's size as the model's folder tells it.

    Raises ModelError for a folder that tells none, ConfigError for requests that do not come all at once.
    """
    shape = environment.model_shape(order.model)
    if shape is None or "vocab_size" not in shape:
        raise ModelError(f"{environment.redacted_model(order.model)} has no config.json that tells its vocabulary")
    vocab_size = int(shape["vocab_size"])
    workload = order.workload.make(vocab_size)
    if not workload.arrives_at_once:
        raise ConfigError("peers run only workloads whose requests arrive all at once")
    return workload, vocab_size


def longest(workload: Workload) -> int:
    """Return the tokens that the longest request comes to, and a few more."""
    return max(len(item.prompt_token_ids) + item.output_tokens for item in workload.items) + SPARE_TOKENS


def told(workload: Workload, vocab_size: int, rides: list[RequestRecord], seconds: float) -> dict[str, Any]:
    """Return what every arm tells of a run."""
    return {
        **summarize_requests(rides, seconds),
        **workload.summary(),
        "vocab_size": vocab_size,
        "threads": len(cpus()),
    }


def dtype_of(order: RunSpec) -> str:
    """Return the dtype that was asked for, or else the one that the model's folder names."""
    if (asked := str(order.options.get("dtype", "auto"))) != "auto":
        return asked
    config = json.loads((_folder(order) / "config.json").read_text(encoding="utf-8"))
    return str(config.get("dtype") or config.get("torch_dtype") or "float32")


def measure(engine: str, order: RunSpec) -> dict[str, Any]:
    """Have another Python run the order. Raises ConfigError, ModelError, and ChairliftError when it fails."""
    workload, vocab_size = workload_of(order)
    task = {
        "model": str(_folder(order)),
        "dtype": dtype_of(order),
        "threads": len(cpus()),
        "cpus": cpus(),
        "longest": longest(workload),
        "settings": order.settings,
        "warm_up": _spelled(warm_up_items(WARM_UP[1], vocab_size)),
        "requests": _spelled(workload.items),
    }
    python = str(Path(order.settings.get("python", sys.executable)).expanduser())
    # What it says goes to our standard error, of which whoever sent the order keeps the end.
    result = exchange([python, "-I", str(OUTSIDE), engine], json.dumps(task).encode(), shown=True)
    rides = [_ride(item, seen) for item, seen in zip(workload.items, result["rides"], strict=True)]
    return {
        **told(workload, vocab_size, rides, result["seconds"]),
        "engine": {**result["engine"], "settings": environment.shown_options(order.settings)},
        "peak_memory_bytes": result["peak_memory_bytes"],
    }


def _folder(order: RunSpec) -> Path:
    return embedded_folder(order.model) or Path(str(order.model)).expanduser()


def _spelled(items: Sequence[WorkloadRequest]) -> list[dict[str, Any]]:
    return [{"prompt": list(item.prompt_token_ids), "tokens": item.output_tokens} for item in items]


def _ride(item: WorkloadRequest, seen: Mapping[str, Any]) -> RequestRecord:
    stamps, count = list(seen["stamps"]), int(seen["tokens"])
    ended = stamps[-1] if stamps else None
    return RequestRecord(item, stamps, count, ended=ended)


ENGINES = ("vllm", "openvino")


def main(words: Sequence[str]) -> int:
    """Obey an order from a file, for the engine that the first word names."""
    engine, *files = words
    assert engine in ENGINES
    return run_child(files, lambda order: measure(engine, order))


if __name__ == "__main__":
    exit_with_parent()
    sys.exit(main(sys.argv[1:]))

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
from chairlift.bench.offline.request_records import Ride, summed_up
from chairlift.bench.offline.run_spec import Order
from chairlift.bench.offline.subprocess_run import THREAD_VARIABLES, exchange, leave_with_parent, obey
from chairlift.bench.report import environment
from chairlift.bench.workload.workload import WorkItem, Workload
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


def workload_of(order: Order) -> tuple[Workload, int]:
    """Return the workload that an order asks for, and the vocabulary's size as the model's folder tells it.

    Raises ModelError for a folder that tells none, ConfigError for requests that do not come all at once.
    """
    shape = environment.model_shape(order.model)
    if shape is None or "vocab_size" not in shape:
        raise ModelError(f"{environment.shown_model(order.model)} has no config.json that tells its vocabulary")
    vocab_size = int(shape["vocab_size"])
    workload = order.workload.make(vocab_size)
    if not workload.arrives_at_once:
        raise ConfigError("peers run only workloads whose requests arrive all at once")
    return workload, vocab_size


def longest(workload: Workload) -> int:
    """Return the tokens that the longest request comes to, and a few more."""
    return max(len(item.prompt_token_ids) + item.output_tokens for item in workload.items) + SPARE_TOKENS


def told(workload: Workload, vocab_size: int, rides: list[Ride], seconds: float) -> dict[str, Any]:
    """Return what every arm tells of a run."""
    return {
        **summed_up(rides, seconds),
        **workload.told(),
        "vocab_size": vocab_size,
        "threads": len(cpus()),
    }


def dtype_of(order: Order) -> str:
    """Return the dtype that was asked for, or else the one that the model's folder names."""
    if (asked := str(order.options.get("dtype", "auto"))) != "auto":
        return asked
    config = json.loads((_folder(order) / "config.json").read_text(encoding="utf-8"))
    return str(config.get("dtype") or config.get("torch_dtype") or "float32")


def measure(engine: str, order: Order) -> dict[str, Any]:
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


def _folder(order: Order) -> Path:
    return embedded_folder(order.model) or Path(str(order.model)).expanduser()


def _spelled(items: Sequence[WorkItem]) -> list[dict[str, Any]]:
    return [{"prompt": list(item.prompt_token_ids), "tokens": item.output_tokens} for item in items]


def _ride(item: WorkItem, seen: Mapping[str, Any]) -> Ride:
    stamps, count = list(seen["stamps"]), int(seen["tokens"])
    ended = stamps[-1] if stamps else None
    return Ride(item, stamps, count, ended=ended)


ENGINES = ("vllm", "openvino")


def main(words: Sequence[str]) -> int:
    """Obey an order from a file, for the engine that the first word names."""
    engine, *files = words
    assert engine in ENGINES
    return obey(files, lambda order: measure(engine, order))


if __name__ == "__main__":
    leave_with_parent()
    sys.exit(main(sys.argv[1:]))

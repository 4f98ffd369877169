"""Transformers peer: runs a workload with transformers, as a program, measured as the engine is.

    python -m chairlift.bench.peers.transformers_peer static|single|continuous SPEC.json RESULT.json

static: generate() on batches of eight in the order of arrival, left-padded, each as long as its longest output.
single: generate() on one request at a time.
continuous: transformers' continuous batching manager with its defaults, except that CUDA features are off and the
cache has blocks for the whole workload at once.
All modes are greedy with attention "sdpa" and ignore the end of sequence. None detokenizes, which the engine does.
transformers and torch are imported only when this program runs.
"""

import importlib
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from chairlift.bench.offline.child_process import exit_with_parent, run_child
from chairlift.bench.offline.request_records import RequestRecord, summarize_requests
from chairlift.bench.offline.run_spec import RunSpec
from chairlift.bench.offline.torch_threads_and_peak_memory import peak_memory, threads
from chairlift.bench.offline.warm_up import WARM_UP, warm_up_items
from chairlift.bench.workload.workload import Workload, WorkloadRequest
from chairlift.core.errors import ConfigError, ModelError
from chairlift.llm.builtin_models import embedded_folder

STATIC_BATCH = 8
PAGE_SIZE = 256  # transformers' own default, too
NO_EOS = -1

Run = Callable[[Sequence[WorkloadRequest]], tuple[list[RequestRecord], float]]
"""Runs requests; returns a record of each and the seconds of the whole run."""

Mode = Callable[[Any, Sequence[WorkloadRequest]], AbstractContextManager[Run]]
"""Prepares a model for a workload; the context yields the function that runs requests."""


def measure(mode: Mode, spec: RunSpec) -> dict[str, Any]:
    """Load the model, warm up and run the workload.

    Returns the fields of a run.
    Raises ModelError, ConfigError.
    """
    torch, transformers = (importlib.import_module(name) for name in ("torch", "transformers"))
    transformers.logging.set_verbosity_error()
    model = _model(torch, transformers, spec)
    vocab_size = model.config.get_text_config().vocab_size
    workload = spec.workload.make(vocab_size)
    _check(model, workload)
    with torch.inference_mode(), mode(model, workload.items) as run:
        run(warm_up_items(WARM_UP[1], vocab_size))
        records, seconds = run(workload.items)
    return {
        **summarize_requests(records, seconds),
        **workload.summary(),
        "engine": {
            "version": transformers.__version__,
            "dtype": str(model.dtype),
            "attention": model.config._attn_implementation,
        },
        "vocab_size": vocab_size,
        "threads": threads(),
        "peak_memory_bytes": peak_memory(),
    }


def _model(torch: Any, transformers: Any, spec: RunSpec) -> Any:
    """Load the model with transformers' default attention: sdpa, or eager for a model without sdpa."""
    dtype = spec.options.get("dtype", "auto")
    name = embedded_folder(spec.model) or spec.model
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            name, dtype=dtype if dtype == "auto" else getattr(torch, dtype),
            revision=spec.options.get("revision"),
        )  # fmt: skip
    except (OSError, ValueError) as error:
        raise ModelError(f"transformers cannot load {spec.model}: {error}") from None
    device = spec.options.get("device", "auto")
    return model.eval().to(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)


def _check(model: Any, workload: Workload) -> None:
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", math.inf)
    longest = max(len(item.prompt_token_ids) + item.output_tokens for item in workload.items)
    if longest > limit:
        raise ConfigError(f"a request of the workload has {longest} tokens, the limit of the model is {limit}")
    if not workload.arrives_at_once:
        raise ConfigError("transformers runs only workloads whose requests arrive all at once")


# -- generate() in batches ---------------------------------------------------------------------------------------------


@contextmanager
def static(model: Any, items: Sequence[WorkloadRequest]) -> Iterator[Run]:
    """Run generate() on one batch at a time; every request of a batch ends with the batch."""
    yield lambda requests: _run_in_batches(model, requests, STATIC_BATCH)


@contextmanager
def single(model: Any, items: Sequence[WorkloadRequest]) -> Iterator[Run]:
    """Run generate() on one request at a time."""
    yield lambda requests: _run_in_batches(model, requests, 1)


def _run_in_batches(model: Any, items: Sequence[WorkloadRequest], size: int) -> tuple[list[RequestRecord], float]:
    torch, generation = importlib.import_module("torch"), importlib.import_module("transformers.generation")
    started_at = time.perf_counter()
    records: list[RequestRecord] = []
    for first in range(0, len(items), size):
        batch = items[first : first + size]
        width = max(len(item.prompt_token_ids) for item in batch)
        longest = max(item.output_tokens for item in batch)
        gaps = [width - len(item.prompt_token_ids) for item in batch]
        rows = [[0] * gap + list(item.prompt_token_ids) for gap, item in zip(gaps, batch, strict=True)]
        masks = [[0] * gap + [1] * (width - gap) for gap in gaps]
        steps = _StepTimes()
        generated = model.generate(
            torch.tensor(rows, device=model.device), attention_mask=torch.tensor(masks, device=model.device),
            do_sample=False, max_new_tokens=longest, min_new_tokens=longest, pad_token_id=0,
            logits_processor=generation.LogitsProcessorList([steps]),
        )  # fmt: skip
        assert generated.shape[1] == width + longest, "generate() stopped early"
        ended = time.perf_counter() - started_at
        stamps = [moment - started_at for moment in steps.moments]
        records += [
            RequestRecord(item, stamps[: item.output_tokens], item.output_tokens, ended=ended) for item in batch
        ]
    return records, time.perf_counter() - started_at


class _StepTimes:
    """A logits processor that records the time at which each step's logits are ready."""

    def __init__(self) -> None:
        self.moments: list[float] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.moments.append(time.perf_counter())
        return scores


# -- its continuous batching -------------------------------------------------------------------------------------------


@contextmanager
def continuous(model: Any, items: Sequence[WorkloadRequest]) -> Iterator[Run]:
    """Run the continuous batching manager on all requests at once."""
    transformers = importlib.import_module("transformers")
    lengths = [len(item.prompt_token_ids) + item.output_tokens for item in items]
    config = transformers.ContinuousBatchingConfig(
        page_size=PAGE_SIZE, num_blocks=sum(length // PAGE_SIZE + 2 for length in lengths), use_cuda_graph=False,
        use_async_batching=False,
    )  # fmt: skip
    generation = transformers.GenerationConfig(
        do_sample=False, eos_token_id=NO_EOS, pad_token_id=0, max_new_tokens=max(item.output_tokens for item in items)
    )
    manager = model.init_continuous_batching(generation_config=generation, continuous_batching_config=config)
    manager.start()
    try:
        yield lambda requests: _run_with_manager(manager, requests)
    finally:
        manager.stop(block=True, hard_stop=True)


def _run_with_manager(manager: Any, items: Sequence[WorkloadRequest]) -> tuple[list[RequestRecord], float]:
    started_at = time.perf_counter()
    records = {
        manager.add_request(
            list(item.prompt_token_ids), max_new_tokens=item.output_tokens, record_timestamps=True, eos_token_id=NO_EOS
        ): RequestRecord(item)
        for item in items
    }
    open_ids = set(records)
    while open_ids:
        result = manager.get_result(timeout=1)
        if result is None:
            if not manager.is_running():
                raise ModelError("transformers' manager stopped with open requests")
        elif result.is_finished():
            _finish(records[result.request_id], result, started_at)
            open_ids.discard(result.request_id)
    return list(records.values()), time.perf_counter() - started_at


def _finish(record: RequestRecord, result: Any, started_at: float) -> None:
    record.stamps = [moment - started_at for moment in result.timestamps or ()]
    record.output_tokens = len(result.generated_tokens)
    record.error = "request_failed" if result.error else ""
    record.ended = record.stamps[-1] if record.stamps else time.perf_counter() - started_at


MODES: dict[str, Mode] = {"static": static, "single": single, "continuous": continuous}


def main(arguments: Sequence[str]) -> int:
    """Run the specification in a file in the mode of the first argument; return the exit code."""
    mode, *files = arguments
    return run_child(files, lambda spec: measure(MODES[mode], spec))


if __name__ == "__main__":
    exit_with_parent()
    sys.exit(main(sys.argv[1:]))

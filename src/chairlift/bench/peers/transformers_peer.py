"""Peers: transformers on the same workload, as a program of its own, measured the way the engine is.

    python -m chairlift.bench.peers.transformers_peer static|single|continuous ORDER.json RESULT.json

static: generate() in batches of eight in the order of arrival, padded on the left, each as long as its longest output.
single: generate() for one request after the other.
continuous: its own manager with its defaults, but for CUDA's features and blocks for the whole workload at once.
All are greedy with attention "sdpa" and ignore the end of sequence. None makes text of its tokens, which the engine
does. It is not the product: where it imports transformers and torch it does so only when it is run.
"""

import importlib
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from chairlift.bench.offline.offline_benchmark import WARM_UP, peak_memory, threads, warm_up_items
from chairlift.bench.offline.request_records import RequestRecord, summarize_requests
from chairlift.bench.offline.run_spec import RunSpec
from chairlift.bench.offline.subprocess_run import exit_with_parent, run_child
from chairlift.bench.workload.workload import Workload, WorkloadRequest
from chairlift.core.errors import ConfigError, ModelError
from chairlift.llm.model_names import embedded_folder

STATIC_BATCH = 8
PAGE_SIZE = 256  # transformers' own default, too
NO_EOS = -1

Run = Callable[[Sequence[WorkloadRequest]], tuple[list[RequestRecord], float]]
"""Does the work; returns what was seen of each request, and the seconds that all took."""

Way = Callable[[Any, Sequence[WorkloadRequest]], AbstractContextManager[Run]]
"""Makes a model ready for a workload."""


def measure(way: Way, order: RunSpec) -> dict[str, Any]:
    """Load the model, warm up, run the workload; returns what was seen. Raises ModelError, ConfigError."""
    torch, transformers = (importlib.import_module(name) for name in ("torch", "transformers"))
    transformers.logging.set_verbosity_error()
    model = _model(torch, transformers, order)
    vocab_size = model.config.get_text_config().vocab_size
    workload = order.workload.make(vocab_size)
    _check(model, workload)
    with torch.inference_mode(), way(model, workload.items) as run:
        run(warm_up_items(WARM_UP[1], vocab_size))
        rides, seconds = run(workload.items)
    return {
        **summarize_requests(rides, seconds),
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


def _model(torch: Any, transformers: Any, order: RunSpec) -> Any:
    dtype = order.options.get("dtype", "auto")
    named = embedded_folder(order.model) or order.model
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            named, dtype=dtype if dtype == "auto" else getattr(torch, dtype), attn_implementation="sdpa",
            revision=order.options.get("revision"),
        )  # fmt: skip
    except (OSError, ValueError) as error:
        raise ModelError(f"transformers cannot load {order.model}: {error}") from None
    device = order.options.get("device", "auto")
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
    """Run generate() on one batch after the other; every request of a batch ends with the batch."""
    yield lambda given: _in_batches(model, given, STATIC_BATCH)


@contextmanager
def single(model: Any, items: Sequence[WorkloadRequest]) -> Iterator[Run]:
    """Run generate() on one request after the other."""
    yield lambda given: _in_batches(model, given, 1)


def _in_batches(model: Any, items: Sequence[WorkloadRequest], size: int) -> tuple[list[RequestRecord], float]:
    torch, generation = importlib.import_module("torch"), importlib.import_module("transformers.generation")
    began = time.perf_counter()
    rides: list[RequestRecord] = []
    for first in range(0, len(items), size):
        batch = items[first : first + size]
        width = max(len(item.prompt_token_ids) for item in batch)
        longest = max(item.output_tokens for item in batch)
        gaps = [width - len(item.prompt_token_ids) for item in batch]
        rows = [[0] * gap + list(item.prompt_token_ids) for gap, item in zip(gaps, batch, strict=True)]
        masks = [[0] * gap + [1] * (width - gap) for gap in gaps]
        steps = _Steps()
        made = model.generate(
            torch.tensor(rows, device=model.device), attention_mask=torch.tensor(masks, device=model.device),
            do_sample=False, max_new_tokens=longest, min_new_tokens=longest, pad_token_id=0,
            logits_processor=generation.LogitsProcessorList([steps]),
        )  # fmt: skip
        assert made.shape[1] == width + longest, "generate() stopped early"
        ended = time.perf_counter() - began
        stamps = [moment - began for moment in steps.moments]
        rides += [RequestRecord(item, stamps[: item.output_tokens], item.output_tokens, ended=ended) for item in batch]
    return rides, time.perf_counter() - began


class _Steps:
    """A logits processor that notes when the logits of each step were there."""

    def __init__(self) -> None:
        self.moments: list[float] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.moments.append(time.perf_counter())
        return scores


# -- its continuous batching -------------------------------------------------------------------------------------------


@contextmanager
def continuous(model: Any, items: Sequence[WorkloadRequest]) -> Iterator[Run]:
    """Run its manager on all requests at once."""
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
        yield lambda given: _managed(manager, given)
    finally:
        manager.stop(block=True, hard_stop=True)


def _managed(manager: Any, items: Sequence[WorkloadRequest]) -> tuple[list[RequestRecord], float]:
    began = time.perf_counter()
    rides = {
        manager.add_request(
            list(item.prompt_token_ids), max_new_tokens=item.output_tokens, record_timestamps=True, eos_token_id=NO_EOS
        ): RequestRecord(item)
        for item in items
    }
    still_open = set(rides)
    while still_open:
        result = manager.get_result(timeout=1)
        if result is None:
            if not manager.is_running():
                raise ModelError("transformers' manager died with requests open")
        elif result.is_finished():
            _finish(rides[result.request_id], result, began)
            still_open.discard(result.request_id)
    return list(rides.values()), time.perf_counter() - began


def _finish(ride: RequestRecord, result: Any, began: float) -> None:
    ride.stamps = [moment - began for moment in result.timestamps or ()]
    ride.output_tokens = len(result.generated_tokens)
    ride.error = "request_failed" if result.error else ""
    ride.ended = ride.stamps[-1] if ride.stamps else time.perf_counter() - began


WAYS: dict[str, Way] = {"static": static, "single": single, "continuous": continuous}


def main(words: Sequence[str]) -> int:
    """Obey an order from a file, in the way that the first word names."""
    way, *files = words
    return run_child(files, lambda order: measure(WAYS[way], order))


if __name__ == "__main__":
    exit_with_parent()
    sys.exit(main(sys.argv[1:]))

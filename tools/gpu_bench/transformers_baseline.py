"""run_transformers: a workload through transformers' continuous batching with paged SDPA, on random weights."""

import importlib
import inspect
import time
from collections.abc import Mapping
from typing import Any

import torch

from chairlift.bench.peers.transformers_peer import NO_EOS, PAGE_SIZE
from chairlift.bench.workload.workload import Workload
from chairlift.core.errors import ModelError
from gpu_bench.part_budget import PartSkipped

ATTENTION = ("sdpa", "paged|sdpa")
"""Names of paged SDPA: transformers 5.23 pages "sdpa" itself, older releases have a name of their own for it."""


def run_transformers(
    config: Mapping[str, Any], device: torch.device, workload: Workload, limit: float
) -> dict[str, Any]:  # fmt: skip
    """Run a workload greedily; after `limit` seconds only the requests that have ended count.

    Raises PartSkipped without transformers, ModelError when it ends before the workload does or no request ended.
    """
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise PartSkipped(f"transformers cannot be imported: {error}") from None
    transformers.logging.set_verbosity_error()
    model = _random_model(transformers, config, device)
    manager = model.init_continuous_batching(
        generation_config=transformers.GenerationConfig(
            do_sample=False, eos_token_id=NO_EOS, pad_token_id=0,
            max_new_tokens=max(item.output_tokens for item in workload.items),
        ),
        continuous_batching_config=_batching_config(transformers, device, workload),
    )  # fmt: skip
    if hasattr(manager, "warmup"):
        manager.warmup()  # captures its CUDA graphs, if it uses some
    manager.start()
    try:
        _drive(manager, Workload(name="warm-up", seed=0, items=workload.items[:1]), limit)
        num_tokens, num_requests, seconds = _drive(manager, workload, limit)
    finally:
        manager.stop(block=True, hard_stop=True)
    if num_requests == 0:
        raise ModelError(f"transformers finished no request in {limit:.0f} s")
    return {
        "requests": len(workload.items), "requests_finished": num_requests, "output_tokens": num_tokens,
        "digest": workload.digest(), "seconds": seconds, "output_tokens_per_second": num_tokens / seconds,
        "is_complete": num_requests == len(workload.items), "version": transformers.__version__,
        "attention": model.config._attn_implementation,
    }  # fmt: skip


def _random_model(transformers: Any, config: Mapping[str, Any], device: torch.device) -> Any:
    """Build the model on the device with the first name of paged SDPA that transformers knows."""
    names = {name: value for name, value in config.items() if name not in ("dtype", "model_type")}
    shape = transformers.AutoConfig.for_model(config["model_type"], **names)
    for attention in ATTENTION:
        try:
            with torch.device(device):
                model = transformers.AutoModelForCausalLM.from_config(
                    shape, dtype=torch.bfloat16, attn_implementation=attention
                )
            return model.eval().to(device)
        except ValueError as error:
            failure = error
    raise ModelError(f"transformers has no paged SDPA: {failure}")


def _batching_config(transformers: Any, device: torch.device, workload: Workload) -> Any:
    """Return its defaults, with blocks for the whole workload at once and SDPA kept; no CUDA features on a CPU."""
    lengths = [len(item.prompt_token_ids) + item.output_tokens for item in workload.items]
    num_blocks = sum(length // PAGE_SIZE + 2 for length in lengths)
    kind = transformers.ContinuousBatchingConfig
    wanted: dict[str, Any] = {"page_size": PAGE_SIZE, "num_blocks": num_blocks, "auto_switch_to_flash": False}
    if device.type != "cuda":
        wanted |= {"use_cuda_graph": False, "use_async_batching": False}
    known = inspect.signature(kind).parameters
    return kind(**{name: value for name, value in wanted.items() if name in known})


def _drive(manager: Any, workload: Workload, limit: float) -> tuple[int, int, float]:
    """Submit all requests; returns output tokens and number of those that ended, and the seconds until the last."""
    started_at = ended_at = time.perf_counter()
    for item in workload.items:
        manager.add_request(list(item.prompt_token_ids), max_new_tokens=item.output_tokens, eos_token_id=NO_EOS)
    num_tokens = num_requests = 0
    while num_requests < len(workload.items) and time.perf_counter() - started_at < limit:
        result = manager.get_result(timeout=1)
        if result is None and not manager.is_running():
            raise ModelError(f"transformers' manager stopped after {num_requests} requests")
        if result is not None and result.is_finished():
            if result.error:
                raise ModelError(f"transformers failed a request: {result.error}")
            num_tokens, num_requests = num_tokens + len(result.generated_tokens), num_requests + 1
            ended_at = time.perf_counter()
    return num_tokens, num_requests, ended_at - started_at

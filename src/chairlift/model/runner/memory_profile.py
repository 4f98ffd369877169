"""profile_steps: measures how much memory of a device the largest steps take, before the KV cache is sized.

    free cached memory ─► reset peak ─► temporary cache, tables, sampler ─► decode step ─► read peak
                                        ─► other largest steps ─► read peak ─► free all

CUDA graphs are captured after the cache is allocated, and their memory serves no other step: as much as the decode step
took, and as much again for their outputs, is added where decode steps are graphs.

The temporary cache has the few blocks that its block tables name again and again, so it is small beside the real one.
Temporary states are those of the most sequences that can run at once: slots of a step differ.
On several ranks every rank runs the same steps, since these have collectives; the largest result counts on all.
"""

import gc
from dataclasses import dataclass
from typing import Protocol

import torch

from chairlift.core.errors import ConfigError
from chairlift.model.attention.base import AttentionBackend, PagedKV
from chairlift.model.attention.kv_pages import allocate_kv, kv_bytes
from chairlift.model.backends.communicator import Communicator
from chairlift.model.backends.loaded_model import LoadedModel
from chairlift.model.batch.state_cache import StateCache, state_dtype
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.device.dtypes import torch_dtype
from chairlift.model.device.kv_dtype import kv_cache_dtype
from chairlift.model.device.page_prefault import PagePrefaulter
from chairlift.model.device.step_error_translation import StepErrors
from chairlift.model.runner.executor_and_cuda_graph_choice import has_graphs, make_executor, run_step
from chairlift.model.runner.free_memory import gibibytes
from chairlift.model.runner.kv_cache_sizing import cache_budget
from chairlift.model.runner.state_cache_sizing import size_states
from chairlift.model.runner.warmup_and_peak_memory_plans import peak_plans

NUM_BLOCKS = 2
"""Blocks of the temporary cache."""

FRAGMENTATION_SHARE = 0.1
"""Share of the measured bytes that is added, for steps that leave gaps between the allocator's blocks."""

GRAPH_BYTES = 256 * 2**20
"""Bytes that are added for CUDA graphs besides what their steps take: the driver keeps the launches of each."""


class MemoryStatistics(Protocol):
    """Counts the memory that torch's allocator holds on a device."""

    def release_cached(self) -> None:
        """Return the memory that no tensor uses to the device."""
        ...

    def allocated_bytes(self) -> int:
        """Return the bytes of all tensors."""
        ...

    def free_bytes(self) -> int:
        """Return the bytes of the device that are free."""
        ...

    def reset_peak(self) -> None:
        """Begin to measure the peak."""
        ...

    def peak_bytes(self) -> int:
        """Wait for the device; return the most bytes that the allocator held since reset_peak()."""
        ...


class CudaMemoryStatistics:
    """The MemoryStatistics of one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def release_cached(self) -> None:
        """See MemoryStatistics."""
        torch.cuda.empty_cache()

    def allocated_bytes(self) -> int:
        """See MemoryStatistics."""
        return torch.cuda.memory_allocated(self._device)

    def free_bytes(self) -> int:
        """See MemoryStatistics."""
        return torch.cuda.mem_get_info(self._device)[0]

    def reset_peak(self) -> None:
        """See MemoryStatistics."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak_bytes(self) -> int:
        """See MemoryStatistics; gaps between tensors count."""
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_reserved(self._device)


@dataclass(frozen=True, slots=True)
class ProfiledStep:
    """A StepMemoryNeed (kv_cache_sizing.py) that was measured.

    Attributes:
        num_bytes: what steps need besides weights and cache, with margins.
        source: how the number was found, for people.
    """

    num_bytes: int
    source: str = "profiled"

    def peak_bytes(self) -> int:
        """Return the bytes that a step needs besides weights and cache."""
        return self.num_bytes


def profile_steps(
    loaded: LoadedModel, config: RunnerConfig, backend: AttentionBackend, max_model_len: int,
    memory: MemoryStatistics | None = None,
) -> ProfiledStep:  # fmt: skip
    """Run the largest steps of a model and return the memory that they need; every rank calls it.

    Raises ConfigError, with the bytes that are free, where even these steps do not fit.
    """
    memory = memory or CudaMemoryStatistics(loaded.device)
    memory.release_cached()
    before, free = memory.allocated_bytes(), memory.free_bytes()
    slots, groups = _most_slots(loaded, config, free), len(loaded.model.groups.windows)
    plans = peak_plans(config.max_batch_tokens, slots, max_model_len, config.block_size, groups)
    try:
        with StepErrors(loaded.device):
            memory.reset_peak()
            cache = _temporary_cache(loaded, config, backend)
            states = _temporary_states(loaded, slots)
            cache_bytes = kv_bytes(cache) + (0 if states is None else states.num_bytes)
            # Made within the measurement: the executor's own tensors are a part of what steps need.
            executor = make_executor(loaded, config, backend, cache, PagePrefaulter(()), states, writes=False)
            held = memory.allocated_bytes()
            run_step(executor, next(plans))
            # Read behind the decode step and before the larger ones: graphs need the memory of decode steps only.
            decode_bytes = max(0, memory.peak_bytes() - held)
            for plan in plans:
                run_step(executor, plan)
            peak = memory.peak_bytes()
    except MemoryError as error:
        raise ConfigError(
            f"the largest steps do not fit into the {gibibytes(free)} that are free on {loaded.device} beside the "
            f"weights: {error}; lower max_batch_tokens ({config.max_batch_tokens}), max_running_requests ({slots}) or "
            f"max_model_len ({max_model_len})",
            option="max_batch_tokens", free=free,
        ) from error  # fmt: skip
    del executor, cache, states
    gc.collect()
    memory.release_cached()  # before the real cache is sized and allocated
    measured = max(0, peak - before - cache_bytes)
    graphs = GRAPH_BYTES + 2 * decode_bytes if has_graphs(loaded, config, backend) else 0
    needed = largest_of_ranks(loaded.communicator, measured + int(measured * FRAGMENTATION_SHARE) + graphs)
    return ProfiledStep(needed, f"profiled: {gibibytes(measured)}, and margins")


def largest_of_ranks(communicator: Communicator | None, num_bytes: int) -> int:
    """Return the largest number of all ranks, so that each has the same number of blocks."""
    return num_bytes if communicator is None else -communicator.minimum(-num_bytes)


def _most_slots(loaded: LoadedModel, config: RunnerConfig, free: int) -> int:
    """Return the most sequences that can run at once: no more than half of the memory for caches has states of."""
    shapes = loaded.model.state_shapes
    if not shapes:
        return config.max_running_requests
    budget, _ = cache_budget(config.max_memory, free, 1, on_host=False)
    itemsize = state_dtype(torch_dtype(loaded.config.dtype)).itemsize
    return size_states(shapes, itemsize, budget, config.max_running_requests).num_slots


def _temporary_states(loaded: LoadedModel, num_slots: int) -> StateCache | None:
    if not loaded.model.state_shapes:
        return None
    return StateCache(loaded.model.state_shapes, num_slots, 0, torch_dtype(loaded.config.dtype), loaded.device)


def _temporary_cache(loaded: LoadedModel, config: RunnerConfig, backend: AttentionBackend) -> list[PagedKV]:
    dtype = kv_cache_dtype(config.kv_cache_dtype, loaded.config.dtype)
    return allocate_kv(backend, loaded.model.groups, NUM_BLOCKS, config.block_size, dtype, loaded.device)

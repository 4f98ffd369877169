"""size_states: how many sequences and checkpoints of a model with states fit into the memory for caches.

memory for caches    at most a half    states of running sequences, of which there may be fewer than configured
                     at most a quarter checkpoints, on the host no more than cached blocks may have
                     the rest          KV cache
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chairlift.core.errors import ConfigError
from chairlift.model.batch.kv_cache_shape import SPARE_BLOCKS, KVCacheShape, full_length_blocks
from chairlift.model.batch.state_cache import state_dtype
from chairlift.model.config.model_config import ModelConfig
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.config.state_layers import StateShape
from chairlift.model.device.dtypes import torch_dtype
from chairlift.model.runner.free_memory import FreeMemory, gibibytes
from chairlift.model.runner.kv_cache_sizing import CACHED_BYTES, cache_budget

SLOT_SHARE, CHECKPOINT_SHARE = 0.5, 0.25
"""Shares of the memory for caches."""

MAX_CHECKPOINTS = 4096
"""Checkpoints beyond which more are of no use: of small states there would be millions."""


@dataclass(frozen=True, slots=True)
class StateCacheSize:
    """The numbers of states.

    Attributes:
        num_slots: sequences that can run at once.
        num_checkpoints: states of prefixes.
        state_bytes: memory of the state of one sequence.
        partial_chunk_bytes: memory of what a running sequence has beside it, see PartialChunk.
    """

    num_slots: int
    num_checkpoints: int
    state_bytes: int
    partial_chunk_bytes: int = 0

    @property
    def num_bytes(self) -> int:
        """Memory of all states."""
        return (self.num_slots + self.num_checkpoints) * self.state_bytes + self.num_slots * self.partial_chunk_bytes

    def info(self) -> dict[str, Any]:
        """Return the fields of RunnerInfo."""
        return {
            "has_state": True, "num_state_checkpoints": self.num_checkpoints, "state_bytes": self.state_bytes,
            "max_running_requests": self.num_slots,
        }  # fmt: skip

    def report(self) -> tuple[tuple[str, str], ...]:
        """Return (name, value) pairs of the startup report."""
        slot_bytes = self.state_bytes + self.partial_chunk_bytes
        is_large = slot_bytes >= 2**20
        size = f"{slot_bytes / 2**20:.1f} MiB" if is_large else f"{slot_bytes / 2**10:.1f} KiB"
        running = f"{self.num_slots} sequences of {size}"
        return (("states", f"{running}, {self.num_checkpoints} checkpoints, {gibibytes(self.num_bytes)}"),)


def size_states(
    shapes: Sequence[StateShape], itemsize: int, cache_bytes: int, max_running_requests: int, *, kv_bytes: int = 0,
    max_checkpoint_bytes: int | None = None,
) -> StateCacheSize:  # fmt: skip
    """Compute the numbers of states.

    Args:
        shapes: of one sequence, by layer with a state.
        itemsize: bytes of a number in a state.
        cache_bytes: memory for states and KV cache.
        max_running_requests: sequences that should be able to run at once.
        kv_bytes: what the KV cache needs for one sequence of the longest length; it is left where one state fits
            beside it.
        max_checkpoint_bytes: most memory of checkpoints; None for no further bound.

    Raises ConfigError if the state of one sequence does not fit.
    """
    # A convolution of one token has no state.
    state_bytes = max(1, sum(shape.num_bytes(itemsize) for shape in shapes))
    partial_bytes = sum(shape.partial_chunk_bytes(itemsize) for shape in shapes)
    slot_bytes = state_bytes + partial_bytes
    if slot_bytes > SLOT_SHARE * cache_bytes:
        raise ConfigError(
            f"the state of one sequence has {gibibytes(slot_bytes)}, but a half of the {gibibytes(cache_bytes)} for "
            "caches is less; raise max_memory", option="max_memory", needed=slot_bytes, free=cache_bytes,
        )  # fmt: skip
    left = max(slot_bytes, cache_bytes - kv_bytes)
    slots = min(max_running_requests, int(min(SLOT_SHARE * cache_bytes, left)) // slot_bytes)
    budget = int(min(CHECKPOINT_SHARE * cache_bytes, left - slots * slot_bytes))
    if max_checkpoint_bytes is not None:
        budget = min(budget, max_checkpoint_bytes)
    return StateCacheSize(slots, min(MAX_CHECKPOINTS, budget // state_bytes), state_bytes, partial_bytes)


def plan_states(
    options: RunnerConfig, model: ModelConfig, free: FreeMemory, step_bytes: int, pool: KVCacheShape, *,
    shapes: Sequence[StateShape], on_host: bool,
) -> StateCacheSize | None:  # fmt: skip
    """Return the states of a model; None for a model without.

    Args:
        options: of the runner.
        model: with the dtype as loaded.
        free: measured after the weights were loaded.
        step_bytes: what a step needs beside caches.
        pool: shape of the KV cache.
        shapes: of one sequence, by layer with a state, as the loaded model has them.
        on_host: whether the states lie in host memory, where checkpoints by default have no more than cached blocks.

    Raises ConfigError.
    """
    if not shapes:
        return None
    budget, _ = cache_budget(options.max_memory, max(0, free.num_bytes - step_bytes), free.num_sharers, on_host)
    windows = model.layer_groups.windows
    is_default = on_host and options.max_memory is None and options.num_blocks is None
    return size_states(
        shapes, state_dtype(torch_dtype(model.dtype)).itemsize, budget, options.max_running_requests,
        kv_bytes=(full_length_blocks(pool, windows) + SPARE_BLOCKS) * pool.page_bytes,
        max_checkpoint_bytes=CACHED_BYTES if is_default else None,
    )  # fmt: skip

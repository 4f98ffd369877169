"""size_states: how many sequences and checkpoints of a model with states fit into the memory for caches.

memory for caches    at most a half    states of running sequences, of which there may be fewer than configured
                     at most a quarter checkpoints, on the host no more than cached blocks may have
                     the rest          KV cache
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from chairlift.core.errors import ConfigError
from chairlift.model.config.model_config import ModelConfig
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.config.state_layers import StateShape
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
    """

    num_slots: int
    num_checkpoints: int
    state_bytes: int

    @property
    def num_bytes(self) -> int:
        """Memory of all states."""
        return (self.num_slots + self.num_checkpoints) * self.state_bytes

    def info(self) -> dict[str, Any]:
        """Return the fields of RunnerInfo."""
        return {
            "has_state": True, "num_state_checkpoints": self.num_checkpoints, "state_bytes": self.state_bytes,
            "max_running_requests": self.num_slots,
        }  # fmt: skip

    def report(self) -> tuple[tuple[str, str], ...]:
        """Return (name, value) pairs of the startup report."""
        is_large = self.state_bytes >= 2**20
        size = f"{self.state_bytes / 2**20:.1f} MiB" if is_large else f"{self.state_bytes / 2**10:.1f} KiB"
        running = f"{self.num_slots} sequences of {size}"
        return (("states", f"{running}, {self.num_checkpoints} checkpoints, {gibibytes(self.num_bytes)}"),)


def size_states(
    shapes: Sequence[StateShape], itemsize: int, cache_bytes: int, max_running_requests: int, *, on_host: bool
) -> StateCacheSize:  # fmt: skip
    """Compute the numbers of states.

    Args:
        shapes: of one sequence, by layer with a state.
        itemsize: bytes of a number in a state.
        cache_bytes: memory for states and KV cache.
        max_running_requests: sequences that should be able to run at once.
        on_host: whether the states lie in host memory.

    Raises ConfigError if the state of one sequence does not fit.
    """
    state_bytes = sum(shape.num_bytes(itemsize) for shape in shapes)
    slots = min(max_running_requests, int(SLOT_SHARE * cache_bytes) // state_bytes)
    if slots < 1:
        raise ConfigError(
            f"the state of one sequence has {gibibytes(state_bytes)}, but a half of the {gibibytes(cache_bytes)} for "
            "caches is less; raise max_memory", option="max_memory", needed=state_bytes, free=cache_bytes,
        )  # fmt: skip
    budget = int(CHECKPOINT_SHARE * cache_bytes)
    if on_host:
        budget = min(budget, CACHED_BYTES)
    return StateCacheSize(slots, min(MAX_CHECKPOINTS, budget // state_bytes), state_bytes)


def plan_states(
    options: RunnerConfig, model: ModelConfig, free: FreeMemory, step_bytes: int, *, on_host: bool
) -> tuple[StateCacheSize | None, FreeMemory, float | int | None]:
    """Return the states of a model, and the free memory and `max_memory` that they leave for the KV cache.

    Args:
        options: of the runner.
        model: with the dtype as loaded.
        free: measured after the weights were loaded.
        step_bytes: what a step needs beside caches.
        on_host: as in size_states.

    Returns None for a model without states. Raises ConfigError.
    """
    if not model.state_shapes:
        return None, free, options.max_memory
    budget, _ = cache_budget(options.max_memory, max(0, free.num_bytes - step_bytes), free.num_sharers, on_host)
    itemsize = 8 if model.dtype == "float64" else 4
    size = size_states(model.state_shapes, itemsize, budget, options.max_running_requests, on_host=on_host)
    left = replace(free, num_bytes=max(0, free.num_bytes - size.num_bytes))
    is_bytes = isinstance(options.max_memory, int)
    return size, left, options.max_memory - size.num_bytes if is_bytes and options.max_memory else options.max_memory

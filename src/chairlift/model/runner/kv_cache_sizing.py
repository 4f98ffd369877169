"""size_kv_cache: computes how many KV blocks fit into free memory, less what a step needs, times a share.

    free on the host = min(MemAvailable, remaining limit of every cgroup above this process) - mapped weights
    free on CUDA     = free memory that the driver reports; a step is measured there (memory_profile.py)
    pool             = min(share * (free - one full step) - spare blocks, blocks that the largest batch could use)
    cached on host   = at most max_cached_blocks of it, unless its size is set: other programs need memory, too

Mapped weights lie in the page cache, which the kernel counts as free. Using that memory for the cache would make the
kernel read the weights from disk again and again, so their size is subtracted.
"""

from dataclasses import dataclass
from typing import Protocol

from chairlift.core.errors import ConfigError
from chairlift.model.backends.communicator import Communicator
from chairlift.model.batch.kv_cache_shape import SPARE_BLOCKS, KVCacheShape
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.config.model_config import ModelConfig
from chairlift.model.config.runner_option_checks import check_max_memory
from chairlift.model.runner.free_memory import FreeMemory, gibibytes

DEVICE_SHARE = 0.9
HOST_SHARE = 0.25
"""Share on the host, whose memory other programs and the rest of the engine (tokenizer, page cache, Python) use too."""

CACHED_BYTES = 512 << 20
"""Bytes of cached blocks on the host, beside those that sequences hold: with all else a server has less than a GiB."""

CACHED_SEQUENCES = 8
"""Number of the longest sequences of which cached blocks are kept, unless they have more than CACHED_BYTES."""


class StepMemoryNeed(Protocol):
    """What steps need besides weights and cache.

    Attributes:
        source: how the number was found, for people.
    """

    @property
    def source(self) -> str:
        """See the class."""
        ...

    def peak_bytes(self) -> int:
        """Return the bytes of the largest step."""
        ...


@dataclass(frozen=True, slots=True)
class KVCacheSize:
    """The number of blocks, the bytes of one, and a report of how they were computed: (name, value) pairs.

    max_cached_blocks: see RunnerInfo; None on a device, and where the size was set.
    """

    num_blocks: int
    page_bytes: int
    report: tuple[tuple[str, str], ...]
    max_cached_blocks: int | None = None


def size_kv_cache(
    pool: KVCacheShape, step: StepMemoryNeed, free: FreeMemory, *, on_host: bool,
    max_memory: float | int | None = None, num_blocks: int | None = None, reserved: int = 0,
) -> KVCacheSize:  # fmt: skip
    """Compute how many blocks the cache gets.

    Args:
        pool: size of a block, and the number that is useful.
        step: what must fit beside the cache: estimated (ActivationShape) or measured (memory_profile.py).
        free: measured after the weights were loaded.
        on_host: whether the cache lies in host memory, which is shared with others.
        max_memory: a share (0..1] of the memory free beside a step, or bytes for the caches of all that share the
            memory; None is a share by device.
        reserved: bytes of that memory that states of sequences take.
        num_blocks: the configured number, only checked against free memory; None computes it.

    Raises ConfigError with both numbers when the blocks do not fit, or one short sequence does not.
    """
    step_bytes, page = step.peak_bytes(), pool.page_bytes
    left, least = max(0, free.num_bytes - step_bytes), pool.min_blocks + SPARE_BLOCKS
    if num_blocks is not None:
        if (needed := (num_blocks + SPARE_BLOCKS) * page + reserved) > left:
            raise ConfigError(
                f"num_blocks {num_blocks} needs {gibibytes(needed)} and a step {gibibytes(step_bytes)}, "
                f"but {gibibytes(free.num_bytes)} are free ({free.limit}); lower num_blocks",
                option="num_blocks", needed=needed + step_bytes, free=free.num_bytes,
            )  # fmt: skip
        fitting, how = num_blocks, "as set"
    else:
        budget, how = cache_budget(max_memory, left, free.num_sharers, on_host)
        budget = max(0, budget - reserved)
        fitting = budget // page - SPARE_BLOCKS
        if fitting < pool.min_blocks:
            raise ConfigError(
                f"one sequence needs at least {least} blocks of {page} bytes, which are {least * page} bytes, "
                f"but {budget} bytes are left for the KV cache: {gibibytes(free.num_bytes)} are free ({free.limit}), "
                f"and a step needs {gibibytes(step_bytes)}",
                option="max_memory", needed=least * page, free=budget,
            )  # fmt: skip
        if fitting > pool.useful_blocks:
            fitting, how = pool.useful_blocks, "as many as max_running_requests of max_model_len tokens can use"
    max_cached, kept = None, ""
    if on_host and max_memory is None and num_blocks is None:
        max_cached = min(fitting, max_cached_blocks(pool))
        tokens = max_cached // pool.groups * pool.block_size
        kept = f"; finished prompts keep {gibibytes(max_cached * page)}, {tokens} tokens"
    return KVCacheSize(
        fitting,
        page,
        (
            ("free memory", f"{gibibytes(free.num_bytes)} ({free.limit})"),
            ("memory of a step", f"{gibibytes(step_bytes)} ({step.source})"),
            ("num_blocks", f"{fitting} ({how})"),
            ("kv cache", f"{gibibytes(fitting * page)}, {fitting // pool.groups * pool.block_size} tokens{kept}"),
        ),
        max_cached,
    )


def max_cached_blocks(pool: KVCacheShape) -> int:
    """Return the number of cached blocks on the host from which their memory is used again, before new memory."""
    longest = pool.useful_blocks // pool.max_running_requests
    return min(CACHED_SEQUENCES * longest, CACHED_BYTES // pool.page_bytes)


def agree_on_sizes(
    communicator: Communicator, model: ModelConfig, free: FreeMemory, *, on_host: bool
) -> tuple[ModelConfig, FreeMemory]:
    """Return the sizes and the free memory by which every rank computes the same number of KV blocks.

    That memory is the least of all ranks, divided by their number where they share the host's; then max_memory in bytes
    is divided, too. No rank allocates its cache before all have measured.
    """
    shard = communicator.shard
    least, ranks = communicator.minimum(free.num_bytes), shard.num_ranks
    agreed = FreeMemory(least, f"least of {ranks} ranks: {free.limit}")
    if on_host:
        agreed = FreeMemory(least // ranks, f"{free.limit}, shared by {ranks} ranks", ranks)
    assert isinstance(model, DecoderConfig), "a sharded model is one of Chairlift's own"
    return shard.step_sizes(model), agreed


def cache_budget(max_memory: float | int | None, left: int, num_sharers: int, on_host: bool) -> tuple[int, str]:
    """Return the bytes for the caches of `left` free ones, and how they were found. Raises ConfigError."""
    share = (HOST_SHARE if on_host else DEVICE_SHARE) if max_memory is None else max_memory
    check_max_memory(share)
    if isinstance(share, float):
        return int(left * share), f"{share:g} of the memory that a step leaves free"
    own = share // num_sharers
    each = f", {own} for each of {num_sharers} ranks" if num_sharers > 1 else ""
    if own > left:
        raise ConfigError(
            f"max_memory is {share} bytes{each}, but {left} bytes are free besides the memory of a step",
            option="max_memory", needed=own, free=left,
        )  # fmt: skip
    return own, f"max_memory of {gibibytes(share)}{' on all ranks' if each else ''}"

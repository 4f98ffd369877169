"""size_kv_cache: computes how many KV blocks fit into free memory, less what a step needs, times a share.

memory_shapes derives the sizes of a block and of a step from the model's config and the options, before it is loaded.

    free on the host = min(MemAvailable, remaining limit of every cgroup above this process) - mapped weights
    free on CUDA     = free memory that the driver reports; a step is measured there (memory_profile.py)
    pool             = min(share * (free - one full step) - spare blocks, blocks that the largest batch could use)

Mapped weights lie in the page cache, which the kernel counts as free. Using that memory for the cache would make the
kernel read the weights from disk again and again, so their size is subtracted.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from chairlift.core.errors import ConfigError
from chairlift.core.host.memory_limits import cgroup_memory_limits
from chairlift.core.host.system_files import CGROUP, PROC, read_lines, read_sizes
from chairlift.model.attention.torch_paged import GATHER_BYTES, MAX_CACHED_INDICES, MAX_QUERIES
from chairlift.model.backends.communicator import Communicator
from chairlift.model.batch.kv_cache_shape import SPARE_BLOCKS, KVCacheShape, kv_cache_shape
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.config.layer_groups import LayerGroups
from chairlift.model.config.model_config import ModelConfig
from chairlift.model.config.runner_config import RunnerConfig, check_max_memory
from chairlift.model.device.dtypes import dtype_bytes
from chairlift.model.sampling.truncated_sampling import CHUNK_ELEMENTS

DEVICE_SHARE = 0.9
HOST_SHARE = 0.5
"""Share on the host, whose memory other programs and the rest of the engine (tokenizer, page cache, Python) use too."""


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Free bytes, the name of the limit that sets them, and the number of processes that share the memory equally.

    The bytes are those of one process.
    """

    num_bytes: int
    limit: str
    num_sharers: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationShape:
    """Sizes, in elements, of the largest step of a model; itemsize in bytes is that of its dtype.

    `windows` holds each kind of attention once or more: a window in tokens, None for full attention.
    """

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    itemsize: int
    max_batch_tokens: int
    max_running_requests: int
    max_model_len: int
    windows: tuple[int | None, ...] = (None,)

    @property
    def source(self) -> str:
        """How the number of bytes is found, for people."""
        return "estimated from above"

    def peak_bytes(self) -> int:
        """Return an upper estimate of the bytes that a step needs besides weights and cache."""
        attention_width = (2 * self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        widest = max(3 * self.intermediate_size, 3 * attention_width)
        # Residual, its normed copy and the norm's float32 tensors, beside the widest part of a layer.
        activations = self.max_batch_tokens * (self.itemsize * (3 * self.hidden_size + widest) + 8 * self.hidden_size)
        # Backend "torch": a workspace for decoding rows or the longest sequence, and where in the cache their tokens
        # are. Backend "reference": the longest sequence is gathered twice over.
        gathered = max(2 * GATHER_BYTES, 4 * self.max_model_len * self.num_kv_heads * self.head_dim * self.itemsize)
        indices = MAX_CACHED_INDICES * (8 + self.itemsize)
        # One mask per kind is kept, in the model's dtype. Building one needs two in bool, and using one on a GPU needs
        # a copy of a part of it.
        queries, longest = min(self.max_batch_tokens, self.max_model_len, MAX_QUERIES), self.max_model_len
        mask_widths = [queries + (longest if window is None else min(longest, window)) for window in {*self.windows}]
        masks = queries * (self.itemsize * (sum(mask_widths) + max(mask_widths)) + 2 * max(mask_widths))
        rows = self.max_running_requests * self.vocab_size
        # Raw logits, the same in the sampling dtype, and a copy of some of these rows.
        logits = rows * (self.itemsize + 2 * (8 if self.itemsize > 4 else 4))
        # Distribution, running sums and order of one chunk of rows, in float64 and int64, with a sort's workspace.
        sampling = min(rows, max(CHUNK_ELEMENTS, self.vocab_size)) * 8 * 12
        return activations + gathered + indices + masks + logits + sampling


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
    """The number of blocks, the bytes of one, and a report of how they were computed: (name, value) pairs."""

    num_blocks: int
    page_bytes: int
    report: tuple[tuple[str, str], ...]


def memory_shapes(
    config: RunnerConfig, model: ModelConfig, groups: LayerGroups, max_model_len: int
) -> tuple[KVCacheShape, ActivationShape]:
    """Return the shapes that decide the size of the cache and of the largest step; `model` has the dtype as loaded."""
    itemsize = dtype_bytes(model.dtype)
    pool = kv_cache_shape(config, model, groups, max_model_len)
    step = ActivationShape(
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        vocab_size=model.vocab_size,
        itemsize=itemsize,
        max_batch_tokens=config.max_batch_tokens,
        max_running_requests=config.max_running_requests,
        max_model_len=max_model_len,
        windows=groups.windows,
    )
    return pool, step


def free_memory(device: torch.device, *, proc: Path = PROC, cgroup: Path = CGROUP) -> FreeMemory:
    """Return the free memory of the device, or of the host and every cgroup above this process (versions 1 and 2).

    Raises ConfigError where free memory cannot be measured.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # The driver counts what torch's allocator holds as used, but new tensors get that first.
        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return FreeMemory(free + reusable, f"free on {device}")
    readings = host_readings(proc, cgroup)
    if not readings:
        raise ConfigError("cannot measure free memory on this system; set num_blocks", option="num_blocks")
    tightest = min(readings, key=lambda one: one.num_bytes)
    mapped = mapped_weights(proc)
    if not mapped:
        return tightest
    limit = f"{tightest.limit} less {gibibytes(mapped)} of mapped weights"
    return FreeMemory(max(0, tightest.num_bytes - mapped), limit)


def host_readings(proc: Path = PROC, cgroup: Path = CGROUP) -> list[FreeMemory]:
    """Return the free memory of the host, and of every cgroup above this process that has a limit."""
    limits = cgroup_memory_limits(proc=proc, cgroup=cgroup)
    return [*_host_memory(proc), *(FreeMemory(max(0, each.num_bytes - each.used_bytes), each.name) for each in limits)]


def mapped_weights(proc: Path = PROC) -> int:
    """Return the bytes of safetensors files that this process has mapped."""
    total = 0
    for line in read_lines(proc / "self/maps"):
        if line.endswith(".safetensors"):
            start, _, end = line.split(maxsplit=1)[0].partition("-")
            total += int(end, 16) - int(start, 16)
    return total


def size_kv_cache(
    pool: KVCacheShape, step: StepMemoryNeed, free: FreeMemory, *, on_host: bool,
    max_memory: float | int | None = None, num_blocks: int | None = None,
) -> KVCacheSize:  # fmt: skip
    """Compute how many blocks the cache gets.

    Args:
        pool: size of a block, and the number that is useful.
        step: what must fit beside the cache: estimated (ActivationShape) or measured (memory_profile.py).
        free: measured after the weights were loaded.
        on_host: whether the cache lies in host memory, which is shared with others.
        max_memory: a share (0..1] of the memory free beside a step, or bytes for the caches of all that share the
            memory; None is a share by device.
        num_blocks: the configured number, only checked against free memory; None computes it.

    Raises ConfigError with both numbers when the blocks do not fit, or one short sequence does not.
    """
    step_bytes, page = step.peak_bytes(), pool.page_bytes
    left, least = max(0, free.num_bytes - step_bytes), pool.min_blocks + SPARE_BLOCKS
    if num_blocks is not None:
        if (needed := (num_blocks + SPARE_BLOCKS) * page) > left:
            raise ConfigError(
                f"num_blocks {num_blocks} needs {gibibytes(needed)} and a step {gibibytes(step_bytes)}, "
                f"but {gibibytes(free.num_bytes)} are free ({free.limit}); lower num_blocks",
                option="num_blocks", needed=needed + step_bytes, free=free.num_bytes,
            )  # fmt: skip
        fitting, how = num_blocks, "as set"
    else:
        budget, how = _budget(max_memory, left, free.num_sharers, on_host)
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
    return KVCacheSize(
        fitting,
        page,
        (
            ("free memory", f"{gibibytes(free.num_bytes)} ({free.limit})"),
            ("memory of a step", f"{gibibytes(step_bytes)} ({step.source})"),
            ("num_blocks", f"{fitting} ({how})"),
            ("kv cache", f"{gibibytes(fitting * page)}, {fitting // pool.groups * pool.block_size} tokens"),
        ),
    )


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


def gibibytes(num_bytes: int) -> str:
    """Format bytes in GiB, or in MiB below one GiB."""
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.1f} MiB"


def _budget(max_memory: float | int | None, left: int, num_sharers: int, on_host: bool) -> tuple[int, str]:
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


def _host_memory(proc: Path) -> Iterator[FreeMemory]:
    if (available := read_sizes(proc / "meminfo").get("MemAvailable")) is not None:
        yield FreeMemory(available, "MemAvailable")
    elif proc == PROC and "SC_PHYS_PAGES" in os.sysconf_names:
        yield FreeMemory(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2, "half of the physical memory")

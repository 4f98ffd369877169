"""How many blocks of KV cache fit: what is free, less what a step needs, times a share.

    free on the host = min(MemAvailable, what every cgroup above this process still allows) - mapped weights
    free on CUDA     = what the driver says
    pool             = min(share * (free - one full step) - spare blocks, what the largest batch could use)

Weights that stay mapped lie in the page cache, which the kernel counts as free; giving it away would mean reading them
from disk again and again, so they are taken off.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from chairlift.core.errors import ConfigError
from chairlift.model.attention.torch_paged import GATHER_BYTES, KEPT_INDICES, MAX_QUERIES, SPARE_BLOCKS
from chairlift.model.sampling.truncated_sampling import CHUNK_ELEMENTS

DEVICE_SHARE = 0.9
HOST_SHARE = 0.5
"""On the host other programs live too, and the rest of the engine: tokenizer, page cache, Python."""

MIN_BLOCKS_PER_GROUP = 2
_CGROUP_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Bytes that can still be taken, and whose limit that is."""

    num_bytes: int
    limit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
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

    def peak_bytes(self) -> int:
        """Estimate from above what a step takes besides weights and cache."""
        attention_width = (2 * self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        widest = max(3 * self.intermediate_size, 3 * attention_width)
        # Residual, its normed copy and a float32 island of the norm beside the widest part of a layer.
        activations = self.max_batch_tokens * (self.itemsize * (3 * self.hidden_size + widest) + 8 * self.hidden_size)
        # Backend "torch": a workspace for decoding rows or the longest sequence, and where in the cache their tokens
        # are. Backend "reference": the longest sequence is gathered twice over.
        gathered = max(2 * GATHER_BYTES, 4 * self.max_model_len * self.num_kv_heads * self.head_dim * self.itemsize)
        indices = KEPT_INDICES * (8 + self.itemsize)
        # One mask a kind is kept, in the model's dtype; there are two in bool while one is made, and on a GPU a copy of
        # a part of it while it is used.
        queries, longest = min(self.max_batch_tokens, self.max_model_len, MAX_QUERIES), self.max_model_len
        seen = [queries + (longest if window is None else min(longest, window)) for window in {*self.windows}]
        masks = queries * (self.itemsize * (sum(seen) + max(seen)) + 2 * max(seen))
        rows = self.max_running_requests * self.vocab_size
        # Raw, in the width that sampling works in, and some rows of these picked out.
        logits = rows * (self.itemsize + 2 * (8 if self.itemsize > 4 else 4))
        # Distribution, running sums and order of one chunk of rows, in float64 and int64, with a sort's scratch space.
        sampling = min(rows, max(CHUNK_ELEMENTS, self.vocab_size)) * 8 * 12
        return activations + gathered + indices + masks + logits + sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolShape:
    """What decides how many pages are of use, and their size.

    Attributes:
        groups: layer groups; each sequence has a block table in every one.
        layers_per_group: KV of one page.
        itemsize: bytes of one element.
    """

    groups: int
    layers_per_group: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    itemsize: int
    max_running_requests: int
    max_model_len: int

    @property
    def page_bytes(self) -> int:
        """Bytes of a page: keys and values of block_size tokens in one layer group."""
        return self.layers_per_group * 2 * self.block_size * self.num_kv_heads * self.head_dim * self.itemsize

    @property
    def useful_blocks(self) -> int:
        """Pages that the largest batch of the longest sequences would hold."""
        return self.max_running_requests * self.groups * math.ceil(self.max_model_len / self.block_size)

    @property
    def least_blocks(self) -> int:
        """Pages without which not even one short sequence runs."""
        return self.groups * min(MIN_BLOCKS_PER_GROUP, math.ceil(self.max_model_len / self.block_size))


@dataclass(frozen=True, slots=True)
class Pool:
    """How many pages of which size, and how that came about: (name, value) for people."""

    num_blocks: int
    page_bytes: int
    report: tuple[tuple[str, str], ...]


def free_memory(
    device: torch.device, *, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")
) -> FreeMemory:
    """Ask the device, or the host and every cgroup above this process (versions 1 and 2).

    Raises ConfigError where nobody can tell.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return FreeMemory(free + reusable, f"free on {device}")
    found = host_readings(proc, cgroup)
    if not found:
        raise ConfigError("cannot tell how much memory is free here; set num_blocks", option="num_blocks")
    tightest = min(found, key=lambda one: one.num_bytes)
    mapped = mapped_weights(proc)
    if not mapped:
        return tightest
    limit = f"{tightest.limit} less {gibibytes(mapped)} of mapped weights"
    return FreeMemory(max(0, tightest.num_bytes - mapped), limit)


def host_readings(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> list[FreeMemory]:
    """Return what the host, and every cgroup above this process that has a limit, would still give."""
    return [*_of_host(proc), *_of_cgroups(proc, cgroup)]


def mapped_weights(proc: Path = Path("/proc")) -> int:
    """Return the bytes of safetensors files that this process has mapped."""
    total = 0
    for line in _lines(proc / "self/maps"):
        if line.endswith(".safetensors"):
            start, _, end = line.split(maxsplit=1)[0].partition("-")
            total += int(end, 16) - int(start, 16)
    return total


def size_pool(
    pool: PoolShape, step: StepShape, free: FreeMemory, *, on_host: bool,
    max_memory: float | int | None = None, num_blocks: int | None = None,
) -> Pool:  # fmt: skip
    """Decide how many pages the cache gets.

    Args:
        pool: their size and use.
        step: what must stay free beside them.
        free: measured after the weights were loaded.
        on_host: whether the cache lies in host memory, which is shared with others.
        max_memory: a share (0..1] of what is free beside a step, or bytes for the cache; None is a share by device.
        num_blocks: asked for; then only checked against what is free.

    Raises ConfigError with both numbers when they do not fit, or not even one short sequence does.
    """
    step_bytes, page = step.peak_bytes(), pool.page_bytes
    left, least = max(0, free.num_bytes - step_bytes), pool.least_blocks + SPARE_BLOCKS
    if num_blocks is not None:
        if (needed := (num_blocks + SPARE_BLOCKS) * page) > left:
            raise ConfigError(
                f"num_blocks {num_blocks} needs {gibibytes(needed)} and a step {gibibytes(step_bytes)}, "
                f"{gibibytes(free.num_bytes)} are free ({free.limit})",
                option="num_blocks", needed=needed + step_bytes, free=free.num_bytes,
            )  # fmt: skip
        fitting, how = num_blocks, "as asked"
    else:
        budget, how = _budget(max_memory, left, on_host)
        fitting = budget // page - SPARE_BLOCKS
        if fitting < pool.least_blocks:
            raise ConfigError(
                f"one sequence needs at least {pool.least_blocks} blocks of {page} bytes, with {SPARE_BLOCKS} to spare "
                f"{least * page}, and {budget} bytes are left for the KV cache: "
                f"{gibibytes(free.num_bytes)} free ({free.limit}), {gibibytes(step_bytes)} for a step",
                option="max_memory", needed=least * page, free=budget,
            )  # fmt: skip
        if fitting > pool.useful_blocks:
            fitting, how = pool.useful_blocks, "all that max_running_requests of max_model_len could use"
    return Pool(
        fitting,
        page,
        (
            ("free memory", f"{gibibytes(free.num_bytes)} ({free.limit})"),
            ("memory of a step", f"{gibibytes(step_bytes)} (estimated from above)"),
            ("num_blocks", f"{fitting} ({how})"),
            ("kv cache", f"{gibibytes(fitting * page)}, {fitting // pool.groups * pool.block_size} tokens"),
        ),
    )


def gibibytes(num_bytes: int) -> str:
    """Say bytes in GiB, or in MiB where they are few."""
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.1f} MiB"


def _budget(max_memory: float | int | None, left: int, on_host: bool) -> tuple[int, str]:
    share = (HOST_SHARE if on_host else DEVICE_SHARE) if max_memory is None else max_memory
    if isinstance(share, float):
        if not 0 < share <= 1:
            raise ConfigError(f"max_memory must be a share in (0, 1] or bytes, got {share}", option="max_memory")
        return int(left * share), f"{share:g} of what a step leaves free"
    if share < 1:
        raise ConfigError(f"max_memory must be a share in (0, 1] or bytes, got {share}", option="max_memory")
    if share > left:
        raise ConfigError(
            f"max_memory asks for {share} bytes, {left} are free beside a step", option="max_memory",
            needed=share, free=left,
        )  # fmt: skip
    return share, f"max_memory of {gibibytes(share)}"


def _of_host(proc: Path) -> Iterator[FreeMemory]:
    for line in _lines(proc / "meminfo"):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            yield FreeMemory(int(value.split()[0]) * 1024, "MemAvailable")
            return
    if proc == Path("/proc") and "SC_PHYS_PAGES" in os.sysconf_names:
        yield FreeMemory(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2, "half of the physical memory")


def _of_cgroups(proc: Path, root: Path) -> Iterator[FreeMemory]:
    for line in _lines(proc / "self/cgroup"):
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not path:
            continue
        if controllers == "":
            version, mounts = 2, [root, root / "unified"]
        elif "memory" in controllers.split(","):
            version, mounts = 1, [root / "memory", root / controllers]
        else:
            continue
        limit_file, usage_file, reclaimable = _CGROUP_FILES[version]
        for folder in _upwards(mounts, path):
            limit, usage = _number(folder / limit_file), _number(folder / usage_file)
            if limit is None or usage is None:
                continue
            for entry in _lines(folder / "memory.stat"):
                name, _, value = entry.partition(" ")
                if name == reclaimable:
                    usage -= int(value)
            yield FreeMemory(max(0, limit - max(0, usage)), f"cgroup {folder / limit_file}")


def _upwards(mounts: list[Path], path: str) -> Iterator[Path]:
    """Every folder from the process's own group up to the mount; in a container its own may be the mount itself."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for mount in mounts:
        for depth in range(len(parts), -1, -1):
            yield mount.joinpath(*parts[:depth])


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _number(file: Path) -> int | None:
    """Read a file of one number; None where there is none, or it says "max"."""
    lines = _lines(file)
    return int(lines[0]) if lines and lines[0].isdigit() else None

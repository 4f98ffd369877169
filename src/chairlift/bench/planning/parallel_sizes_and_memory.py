"""Parallel sizes: how many devices hold one replica, by rules of thumb that are checked against memory.

    tensor    at most 1 for a small model, 4 for a middle one, 8 for a large one; divides the query heads and the MLP,
              and divides the key/value heads or is a multiple of them
    pipeline  as few stages as memory needs, each of at least MIN_STAGE_LAYERS layers
    context   1 up to CONTEXT_LENGTHS tokens of a request, then 2, 4, 8

A replica takes the fewest devices that hold its weights, a step, and the KV cache of one longest request. Where more
devices also fit, the capacity decides (plan.py), because a larger tensor size makes a step shorter.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chairlift.bench.planning.model_memory import ModelMemory
from chairlift.bench.planning.model_shape import ModelShape
from chairlift.core.errors import ConfigError

SMALL_MODEL, MIDDLE_MODEL = 9e9, 40e9
"""Most parameters of a small and of a middle model: 8B models are small, 32B models are middle, 70B models large."""

TENSOR_SIZES = (1, 2, 4, 8)
MIN_STAGE_LAYERS = 2
MAX_STAGES = 16

CONTEXT_LENGTHS = ((32_768, 1), (131_072, 2), (524_288, 4))
"""Tokens of the longest request, and the most context parallel devices for it; more tokens may have MAX_CONTEXT."""

MAX_CONTEXT = 8


GPU_SHARE, HOST_SHARE = 0.9, 0.8
"""Parts of a device's memory that a replica may use; on a host the kernel and other programs need some too."""

GPU_OVERHEAD, HOST_OVERHEAD = 1_500_000_000, 500_000_000
"""Bytes of a replica's processes beside the model: the context of a GPU with its kernels and buffers, an estimate; the
two processes of a server on a CPU, measured with the embedded model (94 MB and 387 MB)."""


@dataclass(frozen=True, slots=True, order=True)
class ParallelSizes:
    """How one replica is split; devices = tensor * pipeline * context."""

    tensor: int = 1
    pipeline: int = 1
    context: int = 1

    @property
    def devices(self) -> int:
        """Devices of one replica."""
        return self.tensor * self.pipeline * self.context

    def __str__(self) -> str:
        return f"tensor {self.tensor}, pipeline {self.pipeline}, context {self.context}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """The bytes of one device: a GPU, or a CPU machine.

    Attributes:
        total: all bytes.
        share: the part that a replica may use.
        overhead: bytes of the process that belong to neither weights, step nor cache.
    """

    total: int
    share: float
    overhead: int

    @property
    def usable(self) -> int:
        """Bytes for weights, step and KV cache."""
        return int(self.total * self.share) - self.overhead


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaMemory:
    """The bytes of the fullest device of a replica.

    Attributes:
        sizes: how the replica is split.
        weights: its weights.
        step: memory of a step, estimated from above.
        request: KV cache of one longest request.
        usable: what the device has for these.
    """

    sizes: ParallelSizes
    weights: int
    step: int
    request: int
    usable: int

    @property
    def kv_cache(self) -> int:
        """Bytes left for the KV cache; negative where weights and step do not fit."""
        return self.usable - self.weights - self.step

    @property
    def missing(self) -> int:
        """Bytes by which one longest request does not fit; 0 where it fits."""
        return max(0, self.request - self.kv_cache)

    @property
    def num_requests(self) -> int:
        """Longest requests that the KV cache holds at once."""
        return max(0, self.kv_cache) // self.request


def max_tensor(shape: ModelShape) -> int:
    """Return the largest tensor parallel size that the model's size allows."""
    if shape.parameters <= SMALL_MODEL:
        return 1
    return 4 if shape.parameters <= MIDDLE_MODEL else 8


def tensor_sizes(shape: ModelShape) -> list[int]:
    """Return the tensor parallel sizes of a model, ascending; 1 is always one of them."""
    kv_heads = shape.num_kv_heads
    return [
        size
        for size in TENSOR_SIZES
        if size <= max_tensor(shape) and shape.num_heads % size == 0 and shape.intermediate_size % size == 0
        and (kv_heads % size == 0 or size % kv_heads == 0)
    ]  # fmt: skip


def max_pipeline(shape: ModelShape) -> int:
    """Return the most pipeline stages that have MIN_STAGE_LAYERS layers each."""
    return max(1, min(MAX_STAGES, shape.num_layers // MIN_STAGE_LAYERS))


def max_context(length: int) -> int:
    """Return the largest context parallel size for requests of `length` tokens."""
    return next((size for limit, size in CONTEXT_LENGTHS if length <= limit), MAX_CONTEXT)


def replica_memory(memory: ModelMemory, device: DeviceMemory, sizes: ParallelSizes, length: int) -> ReplicaMemory:
    """Return the bytes of the fullest device of a replica whose longest request has `length` tokens."""
    return ReplicaMemory(
        sizes=sizes, weights=memory.stage_weights(sizes.tensor, sizes.pipeline), step=memory.step_bytes(sizes.tensor),
        request=memory.kv_of_request(length, sizes.tensor, sizes.pipeline, sizes.context), usable=device.usable,
    )  # fmt: skip


def fitting_replicas(
    memory: ModelMemory, device: DeviceMemory, length: int, max_devices: int
) -> Sequence[ReplicaMemory]:
    """Return the splits that fit: for each tensor and context size the one with the fewest stages.

    Ordered by the number of devices. Raises ConfigError with the missing bytes when none fits.
    """
    tried = [
        replica_memory(memory, device, sizes, length)
        for sizes in _allowed_sizes(memory.shape, length, max_devices)
    ]  # fmt: skip
    fitting: dict[tuple[int, int], ReplicaMemory] = {}
    for each in sorted(tried, key=lambda one: one.sizes.pipeline):
        if not each.missing:
            fitting.setdefault((each.sizes.tensor, each.sizes.context), each)
    if not fitting:
        raise _too_small(min(tried, key=lambda one: (one.missing, one.sizes.devices)), device, length, max_devices)
    return sorted(fitting.values(), key=lambda one: (one.sizes.devices, one.sizes.context, one.sizes.pipeline))


def _allowed_sizes(shape: ModelShape, length: int, max_devices: int) -> Iterator[ParallelSizes]:
    for tensor in tensor_sizes(shape):
        for pipeline in range(1, max_pipeline(shape) + 1):
            for context in TENSOR_SIZES:
                sizes = ParallelSizes(tensor, pipeline, context)
                if context <= max_context(length) and sizes.devices <= max_devices:
                    yield sizes


def _too_small(best: ReplicaMemory, device: DeviceMemory, length: int, max_devices: int) -> ConfigError:
    where = "a replica" if max_devices == 1 else f"each of {best.sizes.devices} devices ({best.sizes})"
    needed = best.weights + best.step + best.request
    option = "gpu_memory" if device.share == GPU_SHARE else "memory"
    return ConfigError(
        f"{option} is too small by {gigabytes(best.missing)}: {where} needs {gigabytes(best.weights)} for weights, "
        f"{gigabytes(best.step)} for a step and {gigabytes(best.request)} for the KV cache of one request of {length} "
        f"tokens, together {gigabytes(needed)}, and {gigabytes(max(0, device.usable))} of {gigabytes(device.total)} "
        "are usable",
        option=option, needed=needed, free=device.usable, missing=best.missing,
    )  # fmt: skip


def gigabytes(num_bytes: float) -> str:
    """Format bytes in GB (10^9), in MB below one GB."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"

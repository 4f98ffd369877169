"""roofline: estimates the step times of a model from the bandwidth and the speed of the devices.

    step            weights / bandwidth + overhead        weights are read once; a mixture reads all its experts
    row             2 * (weights of a token) / speed      of the layers and the lm_head
    prefill_token   2 * (weights of a token) / speed      of the layers
    context_token   KV cache of a token / bandwidth
    prefill_pair    2 * products of a pair / speed

Memory and arithmetic are added, although a GPU overlaps them, so that the estimate is on the safe side. Tensor parallel
devices share every term, at EFFICIENCY ** log2(size), and add two all-reduces a layer; context parallel devices share
all but the weights. The stages of a pipeline take turns: a step takes as long as on one device, and capacity.py counts
one group of running requests for each stage.
"""

import math
from dataclasses import dataclass

from chairlift.bench.planning.model_memory import ModelMemory
from chairlift.bench.planning.parallelism import ParallelSizes
from chairlift.bench.simulation.sim_step_model import SimStepModel
from chairlift.core.errors import ConfigError

GPU_BANDWIDTH, GPU_SPEED = 2039e9, 312e12
"""Bytes a second and operations a second in 16 bits of the data sheet of an A100 with 80 GB."""

CORE_BANDWIDTH, MOST_HOST_BANDWIDTH, CORE_SPEED = 25e9, 200e9, 0.4e12
"""The same of one CPU core, as measured on two cores with AVX-512 BF16 (docs/benchmarks.md: 40 to 65 GB/s, 811
GFLOP/s), and what the cores of one socket share."""

TENSOR_EFFICIENCY = 0.95
"""Share of the speed that is left for each doubling of the tensor parallel size."""

ALL_REDUCE_SECONDS = 10e-6
"""Duration of a small all-reduce between devices that are connected directly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpeed:
    """The speed of one device.

    Attributes:
        bandwidth: bytes a second that its memory delivers at most.
        speed: operations a second at most; a multiply-add is two.
        bandwidth_share: part of the bandwidth that weights are read at.
        context_share: part of the bandwidth that the blocks of a KV cache are read at.
        speed_share: part of the speed that matrix products reach.
        overhead: seconds of a step that are neither.

    Raises ConfigError for a bandwidth or a speed that is not a positive number.
    """

    bandwidth: float
    speed: float
    bandwidth_share: float
    context_share: float
    speed_share: float
    overhead: float

    def __post_init__(self) -> None:
        for option, value in (("memory_bandwidth", self.bandwidth), ("tflops", self.speed)):
            if not 0 < value < math.inf:
                raise ConfigError(f"{option} must be a positive number", option=option)


def gpu_speed(bandwidth: float | None = None, speed: float | None = None) -> DeviceSpeed:
    """Return the speed of a GPU; None is the default. The shares are estimates."""
    return DeviceSpeed(
        bandwidth=GPU_BANDWIDTH if bandwidth is None else bandwidth, speed=GPU_SPEED if speed is None else speed,
        bandwidth_share=0.75, context_share=0.5, speed_share=0.5, overhead=1.5e-3,
    )  # fmt: skip


def host_speed(cores: int, bandwidth: float | None = None, speed: float | None = None) -> DeviceSpeed:
    """Return the speed of the cores of a CPU; None is the default, the shares were measured (docs/benchmarks.md)."""
    shared = min(cores * CORE_BANDWIDTH, MOST_HOST_BANDWIDTH)
    return DeviceSpeed(
        bandwidth=shared if bandwidth is None else bandwidth, speed=cores * CORE_SPEED if speed is None else speed,
        bandwidth_share=0.88, context_share=0.6, speed_share=0.7, overhead=1e-3,
    )  # fmt: skip


def estimate_step_model(memory: ModelMemory, device: DeviceSpeed, sizes: ParallelSizes, length: int) -> SimStepModel:
    """Return the estimated step times of a replica whose requests have about `length` tokens.

    `length` decides how many of the tokens a layer with a window reads.
    """
    shape, tensor = memory.shape, sizes.tensor * TENSOR_EFFICIENCY ** math.log2(sizes.tensor)
    bandwidth = device.bandwidth * device.bandwidth_share * tensor
    speed = device.speed * device.speed_share * tensor
    all_reduce_seconds = 2 * shape.num_layers * ALL_REDUCE_SECONDS * (sizes.tensor > 1)
    kv_heads = min(sizes.tensor, shape.num_kv_heads) * sizes.context
    kv_bytes = memory.kv_of_request(length) / max(1, length) / kv_heads
    # Layers with full attention that would read as many tokens: a layer with a window counts in part.
    num_full_layers = sum(1.0 if window is None else min(1.0, window / length) for window in shape.layer_windows)
    pairs = shape.attention.pair_width * num_full_layers
    layers = 2 * shape.active_matrices / speed
    return SimStepModel(
        step=memory.read_weights / bandwidth + device.overhead + all_reduce_seconds,
        row=layers + 2 * shape.table / speed,
        prefill_token=layers / sizes.context,
        context_token=kv_bytes / (device.bandwidth * device.context_share),
        prefill_pair=2 * pairs / speed / sizes.context,
        origin="estimated from bandwidth and speed",
    )  # fmt: skip

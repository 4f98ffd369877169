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

from chairlift.bench.planning.device_speed import DeviceSpeed
from chairlift.bench.planning.model_memory import ModelMemory
from chairlift.bench.planning.parallel_sizes_and_memory import ParallelSizes
from chairlift.bench.simulation.sim_step_model import SimStepModel

TENSOR_EFFICIENCY = 0.95
"""Share of the speed that is left for each doubling of the tensor parallel size."""

ALL_REDUCE_SECONDS = 10e-6
"""Duration of a small all-reduce between devices that are connected directly."""


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
    # A layer with a window counts in part: as one with full attention that would read as many tokens.
    shares = (1.0 if window is None else min(1.0, window / length) for window in shape.layer_windows)
    pairs = sum(share * layer.pair_width for share, layer in zip(shares, shape.attention, strict=True))
    layers = 2 * shape.active_matrices / speed
    return SimStepModel(
        step=memory.read_weights / bandwidth + device.overhead + all_reduce_seconds,
        row=layers + 2 * shape.table / speed,
        prefill_token=layers / sizes.context,
        context_token=kv_bytes / (device.bandwidth * device.context_share),
        prefill_pair=2 * pairs / speed / sizes.context,
        origin="estimated from bandwidth and speed",
    )  # fmt: skip

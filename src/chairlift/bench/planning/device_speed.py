"""DeviceSpeed, gpu_speed, host_speed: bandwidth and speed of a GPU or of the cores of a CPU."""

import math
from dataclasses import dataclass

from chairlift.core.errors import ConfigError

GPU_BANDWIDTH, GPU_SPEED = 2039e9, 312e12
"""Bytes a second and operations a second in 16 bits of the data sheet of an A100 with 80 GB."""

CORE_BANDWIDTH, MOST_HOST_BANDWIDTH, CORE_SPEED = 25e9, 200e9, 0.4e12
"""The same of one CPU core, as measured on two cores with AVX-512 BF16 (docs/benchmarks.md: 40 to 65 GB/s, 811
GFLOP/s), and what the cores of one socket share."""


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

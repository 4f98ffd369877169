"""Hardware: the devices that a plan is made for: GPUs of one kind, or CPU machines of one kind."""

from dataclasses import dataclass

from chairlift.bench.planning.device_speed import DeviceSpeed, gpu_speed, host_speed
from chairlift.bench.planning.parallel_sizes_and_memory import (
    GPU_OVERHEAD,
    GPU_SHARE,
    HOST_OVERHEAD,
    HOST_SHARE,
    DeviceMemory,
)
from chairlift.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The devices.

    Attributes:
        gpus: GPUs at hand; 0 plans for CPU machines, of which there may be any number.
        memory: bytes of one device.
        cores: cores of a CPU machine; 0 with GPUs.
        bandwidth: bytes a second of one device; None for the default of roofline.py.
        speed: operations a second of one device; None for the default of roofline.py.
        price: of one device for an hour; None for no costs.

    Raises ConfigError for a number out of range.
    """

    gpus: int
    memory: int
    cores: int = 0
    bandwidth: float | None = None
    speed: float | None = None
    price: float | None = None

    def __post_init__(self) -> None:
        if self.gpus < 0:
            raise ConfigError(f"gpus must be at least 0, got {self.gpus}", option="gpus")
        if self.memory < 1:
            name = "gpu_memory" if self.gpus else "memory"
            raise ConfigError(f"{name} must be a positive number of GB", option=name)
        if not self.gpus and self.cores < 1:
            raise ConfigError(f"cores must be at least 1, got {self.cores}", option="cores")
        if self.price is not None and not 0 <= self.price < float("inf"):
            raise ConfigError(f"price must be a number of at least 0, got {self.price:g}", option="price")

    @property
    def device(self) -> str:
        """The name of one device."""
        return "GPU" if self.gpus else "CPU machine"

    @property
    def max_devices(self) -> int:
        """Most devices of one replica; a replica has one CPU machine."""
        return self.gpus or 1

    @property
    def device_memory(self) -> DeviceMemory:
        """The memory of one device."""
        share, overhead = (GPU_SHARE, GPU_OVERHEAD) if self.gpus else (HOST_SHARE, HOST_OVERHEAD)
        return DeviceMemory(total=self.memory, share=share, overhead=overhead)

    @property
    def device_speed(self) -> DeviceSpeed:
        """The speed of one device."""
        if self.gpus:
            return gpu_speed(self.bandwidth, self.speed)
        return host_speed(self.cores, self.bandwidth, self.speed)

    @property
    def has_default_speed(self) -> bool:
        """Whether bandwidth or speed is a default."""
        return self.bandwidth is None or self.speed is None

"""copy_bandwidth, gemm_peak: the largest rates that a device reaches, in bytes and in operations per second."""

import torch

from gpu_bench.device_timer import DeviceTimer


def copy_bandwidth(timer: DeviceTimer, num_bytes: int) -> float:
    """Return bytes per second of a copy within the device's memory: bytes read and bytes written."""
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=timer.device)
    target = torch.empty_like(source)
    return 2 * num_bytes / timer.seconds(lambda: target.copy_(source))


def gemm_peak(timer: DeviceTimer, size: int) -> float:
    """Return operations per second of a bfloat16 product of two square matrices of random numbers."""
    left, right = (torch.randn(size, size, device=timer.device).bfloat16() for _ in range(2))
    out = torch.empty_like(left)
    return 2.0 * size**3 / timer.seconds(lambda: torch.mm(left, right, out=out))

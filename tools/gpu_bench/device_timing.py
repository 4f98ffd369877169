"""DeviceTimer: times work on a device; copy_bandwidth, gemm_peak and device_facts describe the device."""

import importlib.metadata
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

import torch

WARM_UPS, REPEATS = 3, 10
"""Untimed and timed calls of a measurement, of which the median counts."""


class DeviceTimer:
    """Times calls: by CUDA events on a CUDA device, by the host's clock on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def synchronize(self) -> None:
        """Wait until the device has done all work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def host_seconds(self, function: Callable[[], object]) -> float:
        """Return the seconds of one call on the host's clock, until the device is done."""
        self.synchronize()
        started_at = time.perf_counter()
        function()
        self.synchronize()
        return time.perf_counter() - started_at

    def seconds(self, function: Callable[[], object], repeats: int = REPEATS) -> float:
        """Return the median seconds of a call that only launches work on the device."""
        for _ in range(WARM_UPS):
            function()
        if self.device.type != "cuda":
            return statistics.median(self.host_seconds(function) for _ in range(repeats))
        new_event: Any = torch.cuda.Event
        pairs = []
        for _ in range(repeats):
            start, end = (new_event(enable_timing=True) for _ in range(2))
            start.record()
            function()
            end.record()
            pairs.append((start, end))
        self.synchronize()
        return statistics.median(float(start.elapsed_time(end)) for start, end in pairs) / 1000


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


def device_facts(device: torch.device) -> dict[str, Any]:
    """Return the device's name and memory, and the versions of driver, CUDA, torch and triton; None if unknown."""
    facts: dict[str, Any] = {
        "type": device.type, "name": device.type, "memory_bytes": None, "driver": None, "cuda": torch.version.cuda,
        "torch": torch.__version__, "triton": _version("triton"), "transformers": _version("transformers"),
    }  # fmt: skip
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "name": properties.name, "memory_bytes": properties.total_memory, "driver": _driver_version(),
            "multiprocessors": properties.multi_processor_count,
            "compute_capability": f"{properties.major}.{properties.minor}",
        }  # fmt: skip
    return facts


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _driver_version() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return output.split("\n", 1)[0].strip() or None

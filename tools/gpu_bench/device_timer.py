"""DeviceTimer: times work on a device, by its events or by the host's clock."""

import statistics
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

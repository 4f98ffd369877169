"""copy_bandwidth, gemm_peak: what they count."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gpu_bench.device_peaks import copy_bandwidth, gemm_peak
from gpu_bench.device_timer import REPEATS, DeviceTimer

CPU = torch.device("cpu")


def test_peaks_count_bytes_read_and_written_and_two_operations_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    def half_a_second(timer: DeviceTimer, function: Callable[[], object], repeats: int = REPEATS) -> float:
        result: Any = function()
        assert result.isfinite().all()
        return 0.5

    monkeypatch.setattr(DeviceTimer, "seconds", half_a_second)
    assert copy_bandwidth(DeviceTimer(CPU), 1000) == 4000.0
    assert gemm_peak(DeviceTimer(CPU), 16) == 2 * 16**3 / 0.5

"""hardware_peaks.py: the measured peaks are those of a real machine."""

from pathlib import Path

import pytest
import torch

from chairlift.model.kernels.cpu.kernel_cpus import chosen_cpus
from cpu_roofline.hardware_peaks import Reader, products


@pytest.mark.full
def test_peaks_are_those_of_a_machine(tmp_path: Path) -> None:
    cpus = chosen_cpus(1)
    assert 0.01 < products(cpus, [(64, 64), (64, 128)]) < 100_000
    reader = Reader(tmp_path, cpus)
    assert 0.1 < reader.rate() < 10_000
    assert all(0 < reader.seconds(torch.ones(size)) < 60 for size in (1, 2**16))

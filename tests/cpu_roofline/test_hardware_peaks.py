"""hardware_peaks.py: the measured peaks are those of a real machine."""

from pathlib import Path

import pytest
import torch

from chairlift.model.kernels.cpu.instruction_sets import INSTRUCTION_SET_VARIABLE
from chairlift.model.kernels.cpu.kernel_cpus import chosen_cpus
from cpu_roofline import hardware_peaks
from cpu_roofline.hardware_peaks import Reader, peak_gflops, products
from support_native import instruction_sets, need_native


@pytest.mark.full
def test_peaks_are_those_of_a_machine(tmp_path: Path) -> None:
    cpus = chosen_cpus(1)
    assert 0.01 < products(cpus, [(64, 64), (64, 128)], "bfloat16") < 100_000
    reader = Reader(tmp_path, cpus)
    assert 0.1 < reader.rate() < 10_000
    assert all(0 < reader.seconds(torch.ones(size)) < 60 for size in (1, 2**16))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", instruction_sets())
def test_the_peak_of_a_forced_instruction_set_is_its_own(
    name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_native()
    monkeypatch.setattr(hardware_peaks, "products", lambda *_: 1e9)
    assert peak_gflops((0, 1), [(64, 64)], dtype) == 1e9
    monkeypatch.setenv(INSTRUCTION_SET_VARIABLE, name)
    assert 0.1 < peak_gflops((0, 1), [(64, 64)], dtype) < 1e6

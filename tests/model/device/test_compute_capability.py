"""Compute capabilities as numbers and as text."""

import subprocess
import sys

import pytest

from chairlift.model.device.compute_capability import capability_name, compute_capability
from support_cuda_device import simulate_gpu


def test_it_is_that_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate_gpu(monkeypatch, {"cuda:0": (8, 9), "cuda:1": (12, 1)})
    assert [compute_capability(f"cuda:{index}") for index in range(2)] == [89, 121]


@pytest.mark.parametrize(("capability", "name"), [(75, "7.5"), (90, "9.0"), (121, "12.1")])
def test_it_is_written_with_a_point(capability: int, name: str) -> None:
    assert capability_name(capability) == name


def test_torch_is_not_imported_at_once() -> None:
    code = "import sys, chairlift.model.device.compute_capability; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"

"""device_facts: of a CPU, and of a GPU with and without a driver's version."""

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpu_bench.device_facts import device_facts

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def test_facts_of_a_cpu_have_no_driver() -> None:
    facts = device_facts(CPU)
    assert facts["type"] == "cpu" and facts["driver"] is None and facts["torch"] == torch.__version__


@pytest.mark.parametrize("driver", ["580.65.06", None])
def test_facts_of_a_gpu(monkeypatch: pytest.MonkeyPatch, driver: str | None) -> None:
    properties = SimpleNamespace(name="NVIDIA H200", total_memory=150, multi_processor_count=132, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)

    def run(command: list[str], **options: Any) -> Any:
        if driver is None:
            raise FileNotFoundError(command[0])
        return SimpleNamespace(stdout=f"{driver}\n{driver}\n")

    monkeypatch.setattr(subprocess, "run", run)
    facts = device_facts(CUDA)
    assert (facts["name"], facts["driver"], facts["compute_capability"]) == ("NVIDIA H200", driver, "9.0")

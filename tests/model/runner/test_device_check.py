"""device_check.py: a device is tried in another process, with the result of trying it in this one."""

import subprocess
import sys

import pytest
import torch

from chairlift.core.errors import ConfigError
from chairlift.model.runner.device_check import check_device, pick_device, use_device

WITHOUT_TORCH = """
import sys
from chairlift.model.runner.device_check import check_device
check_device("meta")
assert "torch" not in sys.modules
"""


@pytest.mark.parametrize("name", ["cuda:77", pytest.param("mps:9", marks=pytest.mark.full)])
def test_another_process_finds_the_same_reason(name: str) -> None:
    with pytest.raises(ConfigError) as here:
        pick_device(name)
    with pytest.raises(ConfigError) as there:
        check_device(name)
    assert there.value.message == here.value.message and there.value.details == here.value.details
    assert here.value.message.startswith(f"device {name!r} cannot be used: ")


@pytest.mark.parametrize("name", ["auto", "cpu"])
def test_a_device_of_every_machine_needs_no_process(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere")
    check_device(name)


def test_a_usable_device_is_found_without_importing_torch_here() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH], check=True, timeout=120)


def test_only_a_cuda_device_with_an_index_becomes_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    for name in ("cpu", "meta", "cuda", "cuda:1"):
        use_device(torch.device(name))
    assert chosen == [torch.device("cuda:1")]

"""device_option.py: a device is tried in another process, with the result of trying it in this one."""

import subprocess
import sys

import pytest
import torch

from chairlift.core.errors import ConfigError
from chairlift.model.config import device_option
from chairlift.model.config.device_option import (
    check_device,
    check_kv_cache_device,
    check_quantization_device,
    check_state_device,
    device_capability,
    pick_device,
    use_device,
)
from support_architectures import config_of

WITHOUT_TORCH = """
import sys
from chairlift.model.config.device_option import check_device
check_device("meta")
assert "torch" not in sys.modules
"""


@pytest.mark.full
@pytest.mark.parametrize("name", ["cuda:77", "mps:9"])
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


@pytest.mark.full
def test_a_usable_device_is_found_without_importing_torch_here() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH], check=True, timeout=120)


def test_only_a_cuda_device_with_an_index_becomes_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    for name in ("cpu", "meta", "cuda", "cuda:1"):
        use_device(torch.device(name))
    assert chosen == [torch.device("cuda:1")]


@pytest.mark.parametrize("capability", [80, 86, 89, 90, 100])
def test_8_bit_floats_need_a_gpu_that_converts_them(capability: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_option, "device_capability", lambda device: capability)
    check_kv_cache_device("auto", torch.device("cuda:1"))
    if capability >= 89:
        check_kv_cache_device("fp8", torch.device("cuda:1"))
        return
    with pytest.raises(ConfigError) as caught:
        check_kv_cache_device("fp8", torch.device("cuda:1"))
    assert caught.value.message == (
        "kv_cache_dtype 'fp8' needs a GPU of compute capability 8.9 (Ada, Hopper or later), "
        f"cuda:1 has {capability // 10}.{capability % 10}; set kv_cache_dtype to auto"
    )


def test_8_bit_floats_on_other_devices() -> None:
    check_kv_cache_device("fp8", torch.device("cpu"))
    check_kv_cache_device("auto", torch.device("mps"))
    with pytest.raises(ConfigError, match="a CUDA device or a CPU, the device is mps; set kv_cache_dtype to auto"):
        check_kv_cache_device("fp8", torch.device("mps"))


@pytest.mark.parametrize("capability", [80, 86, 89, 90])
def test_weights_of_8_bit_floats_need_a_gpu_that_multiplies_them(
    capability: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_option, "device_capability", lambda device: capability)
    for option in ("none", "int8"):
        check_quantization_device(option, torch.device("cuda"))
    if capability >= 89:
        check_quantization_device("fp8", torch.device("cuda"))
        return
    with pytest.raises(ConfigError) as caught:
        check_quantization_device("fp8", torch.device("cuda"))
    assert caught.value.details["option"] == "quantization" and caught.value.message == (
        "quantization 'fp8' needs a GPU of compute capability 8.9 (Ada, Hopper or later), "
        f"cuda has {capability // 10}.{capability % 10}; leave quantization out"
    )


def test_weights_of_8_bit_floats_on_other_devices() -> None:
    check_quantization_device("fp8", torch.device("cpu"))
    with pytest.raises(ConfigError, match="a CUDA device or a CPU, the device is mps; leave quantization out"):
        check_quantization_device("fp8", torch.device("mps"))


def test_the_capability_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (12, 0))
    assert device_capability(torch.device("cuda:3")) == 120
    assert device_capability(torch.device("cpu")) is None


def test_layers_with_a_state_run_on_cpus_and_by_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    hybrid, plain = config_of("qwen3_5"), config_of("llama")
    check_state_device(hybrid, torch.device("cpu"), 3)
    for device in ("mps", "cuda"):
        check_state_device(plain, torch.device(device), 3)
    check_state_device(hybrid, torch.device("cuda"), 32)
    with pytest.raises(ConfigError, match="but the device is mps; set device to cpu"):
        check_state_device(hybrid, torch.device("mps"), 16)
    with pytest.raises(
        ConfigError, match="need a multiple of 16 tokens in a block on cuda, block_size is 24"
    ) as caught:
        check_state_device(hybrid, torch.device("cuda"), 24)
    assert caught.value.details["option"] == "block_size"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    with pytest.raises(ConfigError, match=r"cuda has compute capability 7\.5, and the kernels need 8\.0"):
        check_state_device(hybrid, torch.device("cuda"), 16)

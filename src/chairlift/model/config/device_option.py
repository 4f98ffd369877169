"""pick_device, use_device, check_device and checks of what a device can do: the device of an option.

Imports no torch at once.
"""

import subprocess
import sys
from typing import TYPE_CHECKING

from chairlift.core.errors import ConfigError
from chairlift.model.config.model_config import ModelConfig
from chairlift.model.config.runner_config import FLOAT8_QUANTIZATION
from chairlift.model.config.state_layers import STATE_CHUNK_TOKENS
from chairlift.model.device.compute_capability import capability_name, compute_capability
from chairlift.model.device.dtypes import AUTO_DTYPE, FLOAT8_CAPABILITY
from chairlift.model.device.triton_package import triton_obstacle

if TYPE_CHECKING:
    import torch

FLOAT8_DEVICES = ("cpu", "cuda")
"""Types of devices that convert 8-bit floats."""

CHECK_SECONDS = 60.0
"""Seconds that the check in another process may take; after that the start of the engine finds the error."""

UNUSABLE = 3
"""Exit code of the process for a device that cannot be used; its output is the reason."""


def pick_device(name: str) -> "torch.device":
    """Return the device that the option `device` names. Raises ConfigError if it cannot be used."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {name!r} cannot be used: {reason}", option="device") from error
    return device


def device_capability(device: "torch.device") -> int | None:
    """Return the compute capability of a CUDA device, times ten; None for another device."""
    return compute_capability(device) if device.type == "cuda" else None


def check_kv_cache_device(option: str, device: "torch.device") -> None:
    """Raise ConfigError if the device cannot have the KV cache of the option `kv_cache_dtype`."""
    if option != AUTO_DTYPE:
        _check_float8_device("kv_cache_dtype", option, device, "set kv_cache_dtype to auto")


def check_quantization_device(option: str, device: "torch.device") -> None:
    """Raise ConfigError if the device cannot multiply with 8-bit floats and the option `quantization` requires that."""
    if option == FLOAT8_QUANTIZATION:
        _check_float8_device("quantization", option, device, "leave quantization out")


def _check_float8_device(name: str, value: str, device: "torch.device", remedy: str) -> None:
    if device.type not in FLOAT8_DEVICES:
        raise ConfigError(
            f"{name} {value!r} needs a CUDA device or a CPU, the device is {device}; {remedy}", option=name
        )
    capability = device_capability(device)
    if capability is not None and capability < FLOAT8_CAPABILITY:
        found, least = map(capability_name, (capability, FLOAT8_CAPABILITY))
        raise ConfigError(
            f"{name} {value!r} needs a GPU of compute capability {least} (Ada, Hopper or later), {device} has {found}; "
            f"{remedy}", option=name,
        )  # fmt: skip


def use_device(device: "torch.device") -> None:
    """Make a CUDA device with an index the current one of this thread, where kernels of Triton run."""
    import torch

    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


def check_device(name: str) -> None:
    """Raise ConfigError if the machine cannot use the device, which another process tries: torch is large.

    Every machine has "auto" and "cpu".
    """
    if name in ("auto", "cpu"):
        return
    command = [sys.executable, "-P", "-m", "chairlift.model.config.device_option", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return
    if done.returncode == UNUSABLE:
        raise ConfigError(done.stdout.strip(), option="device")


def _main() -> int:
    try:
        pick_device(sys.argv[1])
    except ConfigError as error:
        sys.stdout.write(error.message)
        return UNUSABLE
    return 0


def check_state_device(model: ModelConfig, device: "torch.device", block_size: int) -> None:
    """Raise ConfigError for a model with layers that keep a state where they cannot run, or not with these blocks.

    On CUDA their recurrence goes chunk by chunk, and a state is saved at the ends of blocks: these must end chunks.
    """
    if not model.state_shapes or device.type == "cpu":
        return
    if obstacle := triton_obstacle(str(device)):
        raise ConfigError(
            f"{model.architecture} has layers that keep a state, which run on CPUs and by Triton on CUDA devices, but "
            f"{obstacle}; set device to cpu", option="device",
        )  # fmt: skip
    if block_size % STATE_CHUNK_TOKENS:
        raise ConfigError(
            f"{model.architecture} has layers that keep a state, which need a multiple of {STATE_CHUNK_TOKENS} tokens "
            f"in a block on {device}, block_size is {block_size}", option="block_size",
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(_main())

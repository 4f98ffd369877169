"""has_triton, triton_obstacle, can_use_triton, check_triton: whether Triton's kernels run here.

Imports neither triton nor torch at once.
"""

import importlib.util
import os
import subprocess
from typing import TYPE_CHECKING

from chairlift.core.errors import ConfigError
from chairlift.model.device.compute_capability import capability_name, compute_capability

if TYPE_CHECKING:
    import torch

LEAST_CAPABILITY = 80
"""Least compute capability, times ten, of the GPUs that the kernels are compiled and checked for."""


def has_triton() -> bool:
    """Return whether triton can be imported; torch's builds for CUDA bring it."""
    return importlib.util.find_spec("triton") is not None


def is_interpreted() -> bool:
    """Return whether Triton runs its kernels on the CPU, as TRITON_INTERPRET=1 makes it; the tests do so."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def triton_obstacle(device: str) -> str:
    """Return why Triton's kernels do not run on a torch device, as in "cuda:1"; "" if they do.

    They are for NVIDIA GPUs of compute capability 8.0 and higher. A CUDA device that torch does not find has none.
    """
    if not has_triton():
        return "the package triton is not installed"
    if device.partition(":")[0] != "cuda":
        return f"the device is {device}"
    import torch

    if torch.version.hip is not None:
        return "torch is built for AMD GPUs, and the kernels are for NVIDIA's"
    if not torch.cuda.is_available():
        return ""
    if (capability := compute_capability(device)) < LEAST_CAPABILITY:
        found, needed = map(capability_name, (capability, LEAST_CAPABILITY))
        return f"{device} has compute capability {found}, and the kernels need {needed}"
    return ""


def can_use_triton(device: "torch.device") -> bool:
    """Return whether Triton's kernels run on the device."""
    return not triton_obstacle(str(device))


def check_triton(device: str) -> None:
    """Raise ConfigError if Triton cannot start on a device that its kernels are for.

    Its first use compiles a small module in C, for which it calls a compiler.
    """
    if is_interpreted() or triton_obstacle(device):
        return
    from triton.runtime import driver

    try:
        _ = driver.active.utils
    except (RuntimeError, OSError, AssertionError, ImportError, subprocess.CalledProcessError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ConfigError(
            f"device {device!r}: Triton cannot start its driver: {reason}; see that it finds a C compiler and Python's "
            "headers (Debian: apt install gcc python3-dev, or set CC), and the libcuda.so.1 of NVIDIA's driver",
            option="device",
        ) from error

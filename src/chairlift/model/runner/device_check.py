"""pick_device, use_device, check_device: the torch device of an option. Imports no torch at once."""

import subprocess
import sys
from typing import TYPE_CHECKING

from chairlift.core.errors import ConfigError

if TYPE_CHECKING:
    import torch

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
    command = [sys.executable, "-P", "-m", "chairlift.model.runner.device_check", name]
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


if __name__ == "__main__":
    sys.exit(_main())

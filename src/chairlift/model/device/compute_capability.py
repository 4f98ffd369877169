"""compute_capability, capability_name: what NVIDIA GPUs can do. Imports torch on demand only."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def compute_capability(device: "torch.device | str") -> int:
    """Return the compute capability of a CUDA device, times ten: 90 is Hopper."""
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def capability_name(capability: int) -> str:
    """Return a compute capability, times ten, as NVIDIA writes it: "9.0" for 90."""
    return f"{capability // 10}.{capability % 10}"

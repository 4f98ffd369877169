"""ops_for, batch_invariant_ops_for: choose the Ops for a dtype and a device."""

import torch

from chairlift.core.errors import ConfigError
from chairlift.model.device.triton_package import can_use_triton, triton_obstacle
from chairlift.model.layers import onednn_linear
from chairlift.model.layers.fused_ops import FusedOps
from chairlift.model.layers.ops import Ops, TorchOps


def ops_for(dtype: torch.dtype, device: torch.device) -> Ops:
    """Return the fastest Ops for a dtype on a device."""
    if dtype != torch.float64 and can_use_triton(device):
        from chairlift.model.layers.triton_ops import TritonOps

        return TritonOps()
    return TorchOps() if dtype == torch.float64 else FusedOps(onednn_linear.usable(dtype, device))


def batch_invariant_ops_for(dtype: torch.dtype, device: torch.device) -> Ops:
    """Return the Ops for the option `deterministic`. Raises ConfigError where rows depend on their batch."""
    if device.type == "cpu":
        why = "on a CPU the native kernels alone give a request the same tokens in any batch, and they do so without "
        raise _refused(f"{why}this option; they cannot run with these options, see docs/devices.md")
    if device.type != "cuda" or torch.version.hip is not None:
        raise _refused(f"it needs an NVIDIA GPU, the device is {device.type}; leave it out")
    if dtype == torch.float64:
        raise _refused("on a GPU it needs float32, bfloat16 or float16, the model has float64; set dtype")
    if obstacle := triton_obstacle(str(device)):
        raise _refused(f"it needs Triton's kernels, but {obstacle}; leave the option out")
    from chairlift.model.layers.batch_invariant_ops import BatchInvariantOps

    return BatchInvariantOps()


def _refused(why: str) -> ConfigError:
    return ConfigError(f"deterministic: {why}", option="deterministic")

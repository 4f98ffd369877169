"""FusedOps: a layer's operations in as few torch operations as possible, for dtypes narrower than float64.

The numerics are those of TorchOps (ops.py) except for roundings: Llama's norm is rounded once, not twice, where its
weight is [H] (with [heads, H] twice, as in TorchOps), and a rotation twice, not three times. In float64 they would
differ from transformers, whose norms compute in float32; float64 models use TorchOps.
"""

import torch
from torch import Tensor
from torch.nn import functional

from chairlift.core.errors import ConfigError
from chairlift.model.device.triton_package import can_use_triton, triton_obstacle
from chairlift.model.layers import onednn_linear
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


class FusedOps(TorchOps):
    """Ops on any device, in any dtype but float64.

    Attributes:
        packs: whether weights are packed for oneDNN.
    """

    def __init__(self, packs: bool) -> None:
        self.packs = packs
        self._linear = onednn_linear.linear if packs else functional.linear

    def padded_size(self, num_tokens: int) -> int:
        """See Ops."""
        return onednn_linear.padded_rows(num_tokens) if self.packs else num_tokens

    def pack(self, weight: Tensor) -> Tensor:
        """See Ops."""
        return onednn_linear.pack(weight) if self.packs else weight

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """See Ops."""
        return self._linear(x, weight, bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Ops."""
        if weight.ndim == 1:
            return functional.rms_norm(x, weight.shape, weight, eps)
        return functional.rms_norm(x, x.shape[-1:], None, eps) * weight

    def rms_norm_float32(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Ops."""
        return self.rms_norm(x.float(), weight, eps).to(x.dtype)

    def gated_activation(self, gate: Tensor, up: Tensor, activation: str) -> Tensor:
        """See Ops."""
        if activation == "silu":
            return functional.silu(gate).mul_(up)
        return functional.gelu(gate, approximate="tanh" if activation == "gelu_pytorch_tanh" else "none").mul_(up)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """See Ops."""
        return (x * cos).addcmul_(x.roll(x.shape[-1] // 2, -1), sin)

    def softcap(self, logits: Tensor, cap: float) -> Tensor:
        """See Ops."""
        return torch.tanh(logits / cap).mul_(cap)

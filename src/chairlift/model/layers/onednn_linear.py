"""pack, linear: oneDNN's matrix products on x86 CPUs, with weights packed into its blocked layout once, at loading.

torch's plain `linear` sends float32 to MKL, which uses half the capacity of CPUs of other makers, and packs 16-bit
weights again in every call. smol135's shapes on two cores of a Zen 4, ms for all linear layers of a step:

    rows                      1      8     32    512
    float32, MKL             26     33     61    560
    float32, this module     13     14     23    240
    bfloat16, plain          10     11     15     65
    bfloat16, this module     6      7     11     60
"""

import platform

import torch
from torch import Tensor

TILE_ROWS = 256
"""Maximum rows of one product. oneDNN compiles and keeps a kernel for every number of rows, about a megabyte each,
so only few numbers are used: those of padded_rows, and this one."""

USUAL_ROWS = 32
"""Number of rows that the layout is chosen for; it works with every number."""

_TRIAL = (3, 48, 80)


def pack(weight: Tensor) -> Tensor:
    """Return weight [O, I] in oneDNN's layout; opaque, shape and dtype stay."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, USUAL_ROWS)
    return packed


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x [T, I] times the transpose of weight [O, I], packed or not, plus bias [O]."""
    if len(x) <= TILE_ROWS:
        return _product(x, weight, bias)
    out = x.new_empty(len(x), len(weight))
    for start in range(0, len(x), TILE_ROWS):
        out[start : start + TILE_ROWS] = _product(x[start : start + TILE_ROWS], weight, bias)
    return out


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


def padded_rows(count: int) -> int:
    """Return the padded number of rows, at least count, for a step of `count` tokens."""
    if count <= 8:
        return 1 << max(0, count - 1).bit_length()
    step = 8 if count <= 64 else 32
    return -(-count // step) * step


def usable(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether these products work on this machine; a trial decides, as they are not a public API of torch."""
    if device.type != "cpu" or platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    rows, outputs, inputs = _TRIAL
    try:
        x, weight, bias = (
            torch.linspace(-1, 1, rows * inputs).sin().view(rows, inputs).to(dtype),
            torch.linspace(-3, 3, outputs * inputs).sin().view(outputs, inputs).to(dtype),
            torch.linspace(-1, 1, outputs).to(dtype),
        )
        exact = x.double() @ weight.double().T
        plain, packed = linear(x, weight, None), linear(x, pack(weight), bias) - bias
        bound = (4 * torch.finfo(dtype).eps + 1e-5) * float(exact.abs().max())
        return all(bool(((result.double() - exact).abs() <= bound).all()) for result in (plain, packed))
    except (RuntimeError, AttributeError, NotImplementedError):
        return False

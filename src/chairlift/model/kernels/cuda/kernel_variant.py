"""KernelVariant, LAUNCH_OPTIONS: one way in which a kernel is launched; options of every launch."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from chairlift.model.device.dtypes import FLOAT8_CAPABILITY

LAUNCH_OPTIONS: Mapping[str, bool] = {"enable_fp_fusion": False}
"""Options of every launch: a product and a sum after it are rounded one by one. The compiler would make one
instruction of them in some loops of a kernel and not in others, so that bits would depend on the loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelVariant:
    """One way in which a kernel is launched.

    Attributes:
        name: what distinguishes it, such as "decode bf16 head_dim 128".
        kernel: the function that triton.jit has decorated.
        signature: parameter -> Triton's name of its type: "*bf16", "*i32", "i32", "fp32", or "constexpr".
        constants: values of the parameters whose type is "constexpr".
        multiples_of_16: integer parameters that are multiples of 16, for which Triton compiles a kernel of its own.
        num_warps, num_stages: launch options.
        needs_tensor_cores: whether its products must use the instructions for tiles of a whole warp group (wgmma),
            where the GPU has them.
        max_fma: most fused multiply-adds in its code, which products of tiles without tensor cores have.
        min_capability: least compute capability, times ten, that has its instructions.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constants: Mapping[str, Any] = field(default_factory=dict)
    multiples_of_16: frozenset[str] = frozenset()
    num_warps: int = 4
    num_stages: int = 3
    needs_tensor_cores: bool = False
    max_fma: int = 0
    min_capability: int = 0


def float8_cache(variant: KernelVariant) -> KernelVariant:
    """Return the variant whose key_cache and value_cache have 8-bit floats."""
    caches = dict.fromkeys(("key_cache", "value_cache"), "*fp8e4nv")
    return replace(
        variant, name=f"{variant.name}, float8 cache", signature={**variant.signature, **caches},
        min_capability=FLOAT8_CAPABILITY,
    )  # fmt: skip

"""RopeTable: cosines and sines of rotary position embeddings by position, with inverse frequencies of each RoPE type.

Source: transformers 5.23 modeling_rope_utils, bit for bit. Frequencies, angles, cosines and sines are computed in
float32 in every model, also in a float64 one, and then cast to the activations' dtype.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from chairlift.model.config.decoder_config import QueryScaling
from chairlift.model.config.rope_config import RopeConfig


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Cosines and sines of one rotation.

    Attributes:
        cos: [positions, head_dim / 2]; the other half of a head has the same angles.
        sin: the same shape.
    """

    cos: Tensor
    sin: Tensor

    @classmethod
    def of(
        cls, rope: RopeConfig, head_dim: int, positions: int, dtype: torch.dtype, device: torch.device
    ) -> "RopeTable":
        """Compute the table of positions 0 to positions - 1 in float32 and cast it.

        Elements of a head that do not rotate have the cosine 1 and the sine 0 (RopeConfig.row_order).
        """
        rotary_dim = rope.rotary_dim or head_dim
        inv_freq, scaling = inverse_frequencies(rope, rotary_dim)
        angles = torch.arange(positions, dtype=torch.float32, device=device)[:, None] * inv_freq.to(device)
        pad = (0, (head_dim - rotary_dim) // 2)
        cos, sin = functional.pad(angles.cos() * scaling, pad, value=1.0), functional.pad(angles.sin() * scaling, pad)
        return cls(cos.to(dtype), sin.to(dtype))

    @classmethod
    def identity(cls, head_dim: int, positions: int, dtype: torch.dtype, device: torch.device) -> "RopeTable":
        """Return the table that rotates nothing."""
        ones = torch.ones(positions, head_dim // 2, dtype=dtype, device=device)
        return cls(ones, torch.zeros_like(ones))

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, each [T, 1, head_dim], of positions int64 [T], in the layout of Ops.rotate.

        Both have each angle twice; the first half of the sines is negated.
        """
        cos, sin = self.cos.index_select(0, positions)[:, None], self.sin.index_select(0, positions)[:, None]
        return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


def query_scales(scaling: QueryScaling, positions: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the factors [positions] on queries, computed in float32 and cast."""
    places = torch.arange(positions, device=device)
    return (1 + scaling.beta * torch.log(1 + torch.floor(places / scaling.length))).to(dtype)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> tuple[Tensor, float]:
    """Return inverse frequencies float32 [head_dim / 2] and the factor on cosines and sines.

    `head_dim` is without elements that do not rotate.

    "dynamic" uses unscaled frequencies: ModelConfig.context_length rejects a context past the original length.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
    if rope.type == "proportional":
        return _proportional(rope, head_dim), 1.0
    if rope.type == "yarn":
        return _yarn(rope, head_dim, exponents), _yarn_attention_factor(rope)
    if rope.type == "longrope":
        divisors = torch.tensor(rope.divisors, dtype=torch.float32)
        return 1.0 / (divisors * rope.theta**exponents), rope.attention_factor or 1.0
    inv_freq = 1.0 / (rope.theta**exponents)
    if rope.type == "linear":
        inv_freq /= rope.factor
    elif rope.type == "llama3":
        inv_freq = _llama3(rope, inv_freq)
    return inv_freq, 1.0


def _proportional(rope: RopeConfig, head_dim: int) -> Tensor:
    """Return the frequencies of a whole head for the share of them that rotates, and zeros."""
    rotated = int(rope.rotated_share * head_dim // 2)
    exponents = torch.arange(0, 2 * rotated, 2, dtype=torch.int64).to(torch.float32) / head_dim
    return functional.pad(1.0 / (rope.theta**exponents), (0, head_dim // 2 - rotated)) / rope.factor


def _llama3(rope: RopeConfig, inv_freq: Tensor) -> Tensor:
    """Scale frequencies as Llama 3.1: stretch long wavelengths by the factor, keep short ones, blend between them."""
    low, high, length = rope.low_freq_factor, rope.high_freq_factor, rope.original_length
    wavelength = 2 * math.pi / inv_freq
    stretched = torch.where(wavelength > length / low, inv_freq / rope.factor, inv_freq)
    smooth = (length / wavelength - low) / (high - low)
    mixed = (1 - smooth) * stretched / rope.factor + smooth * stretched
    between = ~(wavelength < length / high) * ~(wavelength > length / low)
    return torch.where(between, mixed, stretched)


def _yarn(rope: RopeConfig, head_dim: int, exponents: Tensor) -> Tensor:
    """Scale frequencies as YaRN (https://arxiv.org/abs/2309.00071): interpolate slow dimensions, keep fast ones."""

    def dimension(rotations: float) -> float:
        numerator = head_dim * math.log(rope.original_length / (rotations * 2 * math.pi))
        return numerator / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # no division by zero
    ramp = torch.clamp((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low), 0, 1)
    wavelengths = rope.theta**exponents
    kept = 1 - ramp
    return 1.0 / (rope.factor * wavelengths) * (1 - kept) + 1.0 / wavelengths * kept


def _yarn_attention_factor(rope: RopeConfig) -> float:
    def scaled(mscale: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * mscale * math.log(rope.factor) + 1.0

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return scaled(rope.mscale) / scaled(rope.mscale_all_dim)
    return scaled(1.0)

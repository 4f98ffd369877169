"""GatedDeltaNetConfig, Mamba2Config, ShortConvConfig: sizes of layers with a state. Imports no torch.

Such a layer remembers a sequence in states of a fixed size, whatever the sequence's length: the last inputs of its
causal convolution and, unless it is a short convolution, a recurrent state of one matrix a head.
"""

import math
from dataclasses import dataclass

from chairlift.core.errors import ModelError

GATE_ACTIVATIONS = ("silu", "sigmoid")
"""Activations of the gate of a delta net's output."""

STATE_CHUNK_TOKENS = 16
"""Tokens of a chunk of Triton's recurrence (ADR 0073); a block of the KV cache must have a multiple of them there."""


@dataclass(frozen=True, slots=True)
class StateShape:
    """Shapes of one sequence's states in one layer.

    Attributes:
        convolution: [width - 1, channels], the last inputs of the convolution, the oldest first.
        recurrent: [heads, key_dim, value_dim]; None for a layer with a convolution only.
        key_heads: heads of keys, each of which serves as many of `heads` in a row.
        chunk_tokens: tokens of a chunk of the recurrence; 0 where it goes token by token.
    """

    convolution: tuple[int, int]
    recurrent: tuple[int, int, int] | None = None
    key_heads: int = 0
    chunk_tokens: int = 0

    @property
    def num_elements(self) -> int:
        """Numbers in the states."""
        return math.prod(self.convolution) + (0 if self.recurrent is None else math.prod(self.recurrent))

    def num_bytes(self, itemsize: int) -> int:
        """Return the bytes of the states; a number has `itemsize` bytes: 4, or 8 in a float64 model."""
        return self.num_elements * itemsize

    def partial_chunk(self) -> tuple[tuple[int, int, int], tuple[int, int, int], tuple[int, int]] | None:
        """Return the shapes of what a running sequence keeps of a chunk: keys, updates, decays; None for nothing."""
        if self.recurrent is None or not self.chunk_tokens:
            return None
        heads, key_dim, value_dim = self.recurrent
        tokens = self.chunk_tokens
        return (tokens, self.key_heads, key_dim), (tokens, heads, value_dim), (tokens, heads)

    def partial_chunk_bytes(self, itemsize: int) -> int:
        """Return the bytes of what a running sequence keeps of a chunk, beside its states."""
        return itemsize * sum(map(math.prod, self.partial_chunk() or ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaNetConfig:
    """A gated delta net (Qwen3-Next, Qwen3.5, Qwen3.6), after "Gated Delta Networks", Yang et al. 2024.

    Its convolution has no bias, and is followed by SiLU.

    Attributes:
        num_key_heads: heads of queries and of keys; each serves num_value_heads / num_key_heads value heads in a row.
        num_value_heads: value heads, each with a recurrent state [key_dim, value_dim].
        key_dim: width of a query and of a key.
        value_dim: width of a value.
        conv_width: inputs of the convolution for one output, the token's own included.
        norm_eps: of the norm of each head's output.
        gate_activation: of the gate that the normalised output is multiplied by; one of GATE_ACTIVATIONS.
    """

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int = 4
    norm_eps: float = 1e-6
    gate_activation: str = "silu"

    def __post_init__(self) -> None:
        """Raise ModelError if the heads cannot be shared evenly or the gate's activation is unknown."""
        _check_heads(self.num_value_heads, "value heads", self.num_key_heads, "key heads")
        if self.gate_activation not in GATE_ACTIVATIONS:
            known = ", ".join(GATE_ACTIVATIONS)
            raise ModelError(f"the gate of a delta net has the activation {self.gate_activation!r}, known are {known}")

    @property
    def key_width(self) -> int:
        """Width of the queries, and of the keys, of all heads."""
        return self.num_key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """Width of the values of all heads."""
        return self.num_value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys, values."""
        return 2 * self.key_width + self.value_width

    @property
    def state(self) -> StateShape:
        """Shapes of one sequence's states."""
        return StateShape(
            (self.conv_width - 1, self.channels), (self.num_value_heads, self.key_dim, self.value_dim),
            self.num_key_heads,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Config:
    """A Mamba-2 layer (Granite 4, Nemotron-H, Bamba), after "Transformers are SSMs", Dao and Gu 2024.

    Its convolution is followed by SiLU. The norm of its output comes after the multiplication by SiLU of the gate, and
    is over each of num_groups equal parts.

    Attributes:
        num_heads: heads, each with a recurrent state [state_size, head_dim].
        head_dim: width of a head's input and output.
        state_size: width of B, which writes to the state, and of C, which reads it.
        num_groups: pairs of B and C; each serves num_heads / num_groups heads in a row.
        conv_width: inputs of the convolution for one output, the token's own included.
        conv_bias: whether the convolution has a bias.
        projection_bias: whether the projections have one.
        min_dt: least time step after softplus.
        max_dt: largest time step.
        norm_eps: of the norm of the output.
    """

    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int = 1
    conv_width: int = 4
    conv_bias: bool = True
    projection_bias: bool = False
    min_dt: float = 0.0
    max_dt: float = math.inf
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        """Raise ModelError if the heads cannot be shared evenly."""
        _check_heads(self.num_heads, "heads", self.num_groups, "groups")

    @property
    def inner_width(self) -> int:
        """Width of the inputs, and of the gates, of all heads."""
        return self.num_heads * self.head_dim

    @property
    def group_width(self) -> int:
        """Width of B, and of C, of all groups."""
        return self.num_groups * self.state_size

    @property
    def channels(self) -> int:
        """Channels of the convolution: inputs, B, C."""
        return self.inner_width + 2 * self.group_width

    @property
    def state(self) -> StateShape:
        """Shapes of one sequence's states; transformers has a recurrent state with its last two axes swapped."""
        return StateShape(
            (self.conv_width - 1, self.channels), (self.num_heads, self.state_size, self.head_dim), self.num_groups
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvConfig:
    """A gated short convolution (LFM2): out_proj(C * convolution(B * x)), where in_proj computes B, C and x.

    Attributes:
        hidden_size: channels of the convolution.
        conv_width: inputs of the convolution for one output, the token's own included.
        bias: whether convolution and projections have a bias.
    """

    hidden_size: int
    conv_width: int = 3
    bias: bool = False

    @property
    def channels(self) -> int:
        """Channels of the convolution."""
        return self.hidden_size

    @property
    def state(self) -> StateShape:
        """Shapes of one sequence's states."""
        return StateShape((self.conv_width - 1, self.channels))


StateLayerConfig = GatedDeltaNetConfig | Mamba2Config | ShortConvConfig


def qkvz_row_order(config: GatedDeltaNetConfig) -> list[int]:
    """Return the rows of Qwen3-Next's in_proj_qkvz in the order of in_proj_qkv, then in_proj_z.

    In the checkpoint the rows are grouped by key head: its query, its key, and the values and gates of its value heads.
    """
    shared = config.num_value_heads // config.num_key_heads * config.value_dim
    widths = (config.key_dim, config.key_dim, shared, shared)
    return _ungrouped_rows(config.num_key_heads, widths)


def ba_row_order(config: GatedDeltaNetConfig) -> list[int]:
    """Return the rows of Qwen3-Next's in_proj_ba in the order of in_proj_b, then in_proj_a."""
    shared = config.num_value_heads // config.num_key_heads
    return _ungrouped_rows(config.num_key_heads, (shared, shared))


def _ungrouped_rows(num_groups: int, widths: tuple[int, ...]) -> list[int]:
    """Return rows stored as [group][part][width of the part] in the order [part][group][width of the part]."""
    starts = [sum(widths[:part]) for part in range(len(widths))]
    return [
        group * sum(widths) + start + row
        for start, width in zip(starts, widths, strict=True)
        for group in range(num_groups)
        for row in range(width)
    ]


def _check_heads(count: int, heads: str, num_groups: int, groups: str) -> None:
    if num_groups < 1 or count % num_groups:
        raise ModelError(f"{count} {heads} cannot be shared evenly by {num_groups} {groups}")

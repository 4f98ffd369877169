"""Work: how many operations and bytes a workload takes of a model, whoever does it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from chairlift.bench.workload.workload import WorkloadRequest

HALF = 2
"""Bytes of a bfloat16."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What config.json says of a decoder whose layers are alike.

    Attributes:
        layers, hidden, intermediate, vocabulary: sizes.
        heads, kv_heads, head_dim: of attention.
    """

    layers: int
    hidden: int
    intermediate: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Shape":
        """Read it."""
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        return cls(
            config["num_hidden_layers"], hidden, config["intermediate_size"], config["vocab_size"], heads,
            config.get("num_key_value_heads") or heads, config.get("head_dim") or hidden // heads,
        )  # fmt: skip

    @property
    def products(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of a layer's products."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return (
            (self.hidden, queries + 2 * keys), (queries, self.hidden), (self.hidden, 2 * self.intermediate),
            (self.intermediate, self.hidden),
        )  # fmt: skip

    @property
    def layer_weights(self) -> int:
        """Numbers in all layers' matrices."""
        return self.layers * sum(inputs * outputs for inputs, outputs in self.products)

    @property
    def head_weights(self) -> int:
        """Numbers in the head's matrix."""
        return self.hidden * self.vocabulary

    def kv_bytes(self, tokens: int) -> int:
        """Bytes of so many tokens' keys and values in bfloat16, all layers."""
        return 2 * HALF * self.layers * self.kv_heads * self.head_dim * tokens

    def attention_flops(self, pairs: int) -> int:
        """Operations of attention over so many pairs of a token and one that it sees, all layers."""
        return 4 * self.layers * self.heads * self.head_dim * pairs


def flops(shape: Shape, items: Iterable[WorkloadRequest]) -> int:
    """Return the operations of a workload: layers for every token but the last, the head once for each output."""
    total = 0
    for item in items:
        tokens = len(item.prompt_token_ids) + item.output_tokens - 1
        total += 2 * shape.layer_weights * tokens + 2 * shape.head_weights * item.output_tokens
        total += shape.attention_flops(tokens * (tokens + 1) // 2)
    return total

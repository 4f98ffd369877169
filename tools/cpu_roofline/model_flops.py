"""Shape: the sizes of a decoder model, and the operations and bytes that a workload needs with them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from chairlift.bench.workload.workload import WorkloadRequest


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes in config.json of a decoder whose layers all have the same shape.

    Attributes:
        layers, hidden, intermediate, vocabulary: the model's sizes.
        heads, kv_heads, head_dim: sizes of attention.
        itemsize: bytes of a key or a value.
    """

    layers: int
    hidden: int
    intermediate: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int
    itemsize: int

    @classmethod
    def of(cls, config: Mapping[str, Any], itemsize: int) -> "Shape":
        """Read the sizes from the content of config.json; keys and values have `itemsize` bytes."""
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        return cls(
            config["num_hidden_layers"], hidden, config["intermediate_size"], config["vocab_size"], heads,
            config.get("num_key_value_heads") or heads, config.get("head_dim") or hidden // heads,
            itemsize,
        )  # fmt: skip

    @property
    def products(self) -> tuple[tuple[int, int], ...]:
        """The number of inputs and outputs of each matrix product of a layer."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return (
            (self.hidden, queries + 2 * keys), (queries, self.hidden), (self.hidden, 2 * self.intermediate),
            (self.intermediate, self.hidden),
        )  # fmt: skip

    @property
    def layer_weights(self) -> int:
        """The number of weights in the matrices of all layers."""
        return self.layers * sum(inputs * outputs for inputs, outputs in self.products)

    @property
    def head_weights(self) -> int:
        """The number of weights in the matrix of lm_head."""
        return self.hidden * self.vocabulary

    def kv_bytes(self, num_tokens: int) -> int:
        """Return the bytes of the keys and values of `num_tokens` tokens, all layers."""
        return 2 * self.itemsize * self.layers * self.kv_heads * self.head_dim * num_tokens

    def attention_flops(self, num_pairs: int) -> int:
        """Return the operations of attention for `num_pairs` pairs of a query token and a key token, all layers."""
        return 4 * self.layers * self.heads * self.head_dim * num_pairs


def flops(shape: Shape, items: Iterable[WorkloadRequest]) -> int:
    """Return the operations of a workload.

    The layers compute every token except the last output token. lm_head computes each output token once.
    """
    total = 0
    for item in items:
        num_tokens = len(item.prompt_token_ids) + item.output_tokens - 1
        total += 2 * shape.layer_weights * num_tokens + 2 * shape.head_weights * item.output_tokens
        total += shape.attention_flops(num_tokens * (num_tokens + 1) // 2)
    return total

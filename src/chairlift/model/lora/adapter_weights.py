"""LowRank, AdapterWeights: the numbers of a LoRA adapter by the names of a model's own parameters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

EMBEDDING, LM_HEAD = "model.embed_tokens", "lm_head"
"""Names of what an adapter may replace; it may add a low-rank product to both."""


@dataclass(frozen=True, slots=True)
class LowRank:
    """What an adapter adds to one projection: y = gain * (W x + scale * B (A x)) + bias.

    Attributes:
        a: [r, I], as the file has it.
        b: [O, r].
        scale: factor of the product.
        gain: float [O], DoRA's magnitude divided by the norm of each row of W + scale * B A; None for 1.
    """

    a: Tensor
    b: Tensor
    scale: float
    gain: Tensor | None = None

    @property
    def rank(self) -> int:
        """Rows of A, r."""
        return len(self.a)

    def map_tensors(self, convert: Callable[[Tensor], Tensor]) -> "LowRank":
        """Return the same with every tensor converted."""
        gain = None if self.gain is None else convert(self.gain)
        return LowRank(convert(self.a), convert(self.b), self.scale, gain)


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """An adapter, by canonical names of the decoder's parameters (ParameterLoader) without ".weight".

    Attributes:
        projections: name of each projection, such as "model.layers.0.self_attn.q_proj" -> its low-rank product.
        embedding: A [r, V] and B [H, r]: the embedding of token t is E[t] + scale * B A[:, t]; None without.
        replaced: "lm_head" [V, H] or "model.embed_tokens" [V, H] -> the tensor that replaces the model's. A model whose
            lm_head is its embedding table has both names.
    """

    projections: Mapping[str, LowRank]
    embedding: LowRank | None = None
    replaced: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        parts = [*self.projections.values(), *([] if self.embedding is None else [self.embedding])]
        tensors = [tensor for part in parts for tensor in (part.a, part.b, part.gain) if tensor is not None]
        return sum(tensor.nbytes for tensor in [*tensors, *self.replaced.values()])

    def map_tensors(self, convert: Callable[[Tensor], Tensor]) -> "AdapterWeights":
        """Return the same with every tensor converted."""
        return AdapterWeights(
            {name: part.map_tensors(convert) for name, part in self.projections.items()},
            None if self.embedding is None else self.embedding.map_tensors(convert),
            {name: convert(tensor) for name, tensor in self.replaced.items()},
        )

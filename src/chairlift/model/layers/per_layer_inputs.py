"""PerLayerInputs, LayerInput: an input of each layer beside the hidden state, made of the token and its embedding.

    id ─ row of a second table · √P ───────────────────────────(+)─ · √½ ─ [T, layers, P]
    embedding ─ projection · 1/√H ─ norm of each layer's part ──┘

    x ┬─ gate ─ activation ─ · input ─ projection ─ norm ─(+)─
      └────────────────────────────────────────────────────┘

Source: transformers 5.23 models/gemma4.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.layers.linear_and_rms_norm import Linear, RMSNorm
from chairlift.model.layers.ops import Ops
from chairlift.model.weights.linear_weight import LinearWeight
from chairlift.model.weights.parameter_loader import ParameterLoader

TABLE = "model.embed_tokens_per_layer.weight"
"""Name of the second embedding table."""

SUM_SCALE = 2**-0.5
"""Factor on the sum of the two parts of an input."""


@dataclass(frozen=True, slots=True)
class PerLayerInputs:
    """The inputs of all layers.

    Attributes:
        table: [V, layers * P], in the dtype of the model or packed; only the rows of a step are converted.
        projection: from embeddings [T, H].
        projection_scale: factor on its outputs.
        norm: of each layer's part [P] of them.
    """

    table: LinearWeight
    projection: Linear
    projection_scale: float
    norm: RMSNorm

    @classmethod
    def load(cls, loader: ParameterLoader, config: DecoderConfig) -> "PerLayerInputs | None":
        """Load the table, the projection and its norm; None for a model without such inputs."""
        if (own := config.per_layer_inputs) is None:
            return None
        width, hidden = config.num_layers * own.size, config.hidden_size
        return cls(
            table=loader.embedding(TABLE, (own.vocab_size, width), tied=False),
            projection=Linear.load(loader, {"model.per_layer_model_projection": width}, hidden, False),
            projection_scale=hidden**-0.5,
            norm=RMSNorm.load(loader, "model.per_layer_projection_norm", own.size, config),
        )

    @property
    def size(self) -> int:
        """Numbers of a layer's input."""
        return len(self.norm.weight)

    def table_scale(self, dtype: torch.dtype) -> float:
        """Return the factor on rows of the table, rounded to the model's dtype as that of embeddings is."""
        scale: float = torch.tensor(self.size**0.5, dtype=dtype).item()
        return scale

    def __call__(self, input_ids: Tensor, embedded: Tensor, ops: Ops) -> Tensor:
        """Return the inputs [T, layers, P] of input_ids int64 [T] with embeddings [T, H], which have their factor."""
        assert isinstance(self.table, Tensor), "torch looks up rows of tensors"
        parts = len(input_ids), -1, self.size
        rows = (ops.embed(input_ids, self.table) * self.table_scale(self.table.dtype)).view(parts)
        projected = (self.projection(embedded, ops) * self.projection_scale).view(parts)
        return (self.norm(projected, ops) + rows) * SUM_SCALE


@dataclass(frozen=True, slots=True)
class LayerInput:
    """What one layer makes of its input.

    Attributes:
        gate: [P, H], of the hidden state.
        projection: [H, P].
        norm: of the projection's outputs.
        activation: of the gate.
    """

    gate: Linear
    projection: Linear
    norm: RMSNorm
    activation: str

    @classmethod
    def load(cls, loader: ParameterLoader, name: str, config: DecoderConfig) -> "LayerInput | None":
        """Load the two projections and the norm of a layer; None for a model without such inputs."""
        if (own := config.per_layer_inputs) is None:
            return None
        hidden = config.hidden_size
        return cls(
            Linear.load(loader, {f"{name}.per_layer_input_gate": own.size}, hidden, False),
            Linear.load(loader, {f"{name}.per_layer_projection": hidden}, own.size, False),
            RMSNorm.load(loader, f"{name}.post_per_layer_input_norm", hidden, config),
            config.activation,
        )

    def __call__(self, x: Tensor, layer_input: Tensor, ops: Ops) -> Tensor:
        """Return what is added to the hidden state x [T, H], of the layer's input [T, P]."""
        gated = ops.gated_activation(self.gate(x, ops), layer_input, self.activation)
        return self.norm(self.projection(gated, ops), ops)

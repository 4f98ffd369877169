"""ModelConfig: what the engine must know of any model, whichever implementation runs it. Imports no torch.

DecoderConfig         an architecture of Chairlift's own (decoder_config.py)
TransformersConfig    any other decoder, which transformers' modules compute (transformers_config.py)
"""

from dataclasses import dataclass

from chairlift.core.errors import ConfigError
from chairlift.model.config.layer_groups import AttentionShape, LayerGroups
from chairlift.model.config.state_layers import StateShape


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and limits of a model; sizes are in elements.

    Attributes:
        architecture: name of the class in config.json.
        num_heads: query heads.
        head_dim: num_heads * head_dim may differ from hidden_size.
        layer_shapes: the heads of each layer with attention; empty where all have num_kv_heads of head_dim.
        max_position_embeddings: tokens that the model was trained for.
        layer_windows: one entry per layer with attention; a token sees itself and window - 1 before it, None is full
            attention.
        kv_sources: for each layer with attention None, or for one without keys and values of its own the layer whose
            it reads, of the same window and shape, counted among layers with attention; empty where all have their own.
        eos_token_ids: each of them ends a sequence.
        dtype: one of DTYPES, of the checkpoint; None where config.json has none.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    layer_windows: tuple[int | None, ...]
    layer_shapes: tuple[AttentionShape, ...] = ()
    kv_sources: tuple[int | None, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    dtype: str | None = None

    @property
    def attention_shapes(self) -> tuple[AttentionShape, ...]:
        """The heads of each layer with attention."""
        same = AttentionShape(self.num_kv_heads, self.head_dim)
        return self.layer_shapes or (same,) * len(self.layer_windows)

    def attention_shape_of(self, layer: int) -> AttentionShape:
        """Return the heads of a layer, counted among layers with attention."""
        return self.attention_shapes[layer]

    @property
    def max_head_dim(self) -> int:
        """Elements of the widest head."""
        return max(shape.head_dim for shape in self.attention_shapes)

    def has_own_kv(self, layer: int) -> bool:
        """Return whether a layer, counted among layers with attention, has keys and values of its own."""
        return not self.kv_sources or self.kv_sources[layer] is None

    @property
    def layer_groups(self) -> LayerGroups:
        """The groups in which layers share the KV cache."""
        return LayerGroups.of(self.layer_windows, self.attention_shapes, self.kv_sources)

    @property
    def state_shapes(self) -> tuple[StateShape, ...]:
        """Shapes of one sequence's states, of each layer that keeps a state."""
        return ()

    @property
    def mlp_width(self) -> int:
        """Neurons that a row has in the widest MLP."""
        return self.intermediate_size

    @property
    def inputs_width(self) -> int:
        """Numbers that a token has as inputs of all layers beside the hidden state."""
        return 0

    @property
    def max_context(self) -> int:
        """Longest sequence, in tokens, that the positions support."""
        return self.max_position_embeddings

    def context_length(self, requested: int | None = None) -> int:
        """Return the longest sequence, in tokens: the requested length, else the model's own limit.

        Raises ConfigError for more than the positions support.
        """
        if requested is None:
            return self.max_position_embeddings
        if requested > self.max_context:
            raise ConfigError(
                f"max_model_len is {requested}, the model's limit is {self.max_context}{self._limit_reason()}",
                option="max_model_len",
            )
        return requested

    def _limit_reason(self) -> str:
        """Return what follows the limit in an error message."""
        return ""

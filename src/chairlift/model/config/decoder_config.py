"""DecoderConfig: the architecture's values from a Hugging Face config.json, in either format. Imports no torch.

    transformers 4                                        transformers 5
    rope_theta, rope_scaling, rope_local_base_freq        rope_parameters, also one for each layer type
    torch_dtype                                           dtype
    sliding_window_pattern, max_window_layers             layer_types
    text_config around the text part of a multimodal model, in both

A field that config.json leaves out has the default of transformers' own config class, because published files rely on
that (Gemma 3's names five of its sizes only).
"""

from dataclasses import dataclass, field

from chairlift.model.config.model_config import ModelConfig
from chairlift.model.config.rope_config import RopeConfig

ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")
OTHER_ACTIVATIONS = ("relu", "relu2", "gelu_new", "gelu_fast", "quick_gelu", "gelu_python", "mish", "tanh", "xielu")
"""Activations that transformers has and Chairlift's own architectures do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorms:
    """The norms of a layer by their names in the checkpoint; None where there is none."""

    before_attention: str = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str = "post_attention_layernorm"
    after_mlp: str | None = None

    @property
    def count(self) -> int:
        """Number of norms over the hidden size."""
        return sum(name is not None for name in (self.after_attention, self.after_mlp)) + 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig(ModelConfig):
    """The checked values of an architecture of Chairlift's own; `architecture` is a key of ARCHITECTURES.

    Attributes:
        norm_eps: added to the mean square under the root.
        norm_offset: is added to the weights of all norms, which are then multiplied in float32 (Gemma); 0 multiplies in
            the activations' dtype.
        norms: the norms of a layer.
        has_head_norm: whether each query and key head is normalised.
        activation: of the gate, one of ACTIVATIONS.
        rope: RoPE of layers with full attention.
        sliding_rope: RoPE of layers with a window.
        qkv_bias: whether query, key and value projections have a bias.
        output_bias: whether the projection after attention has a bias.
        mlp_bias: whether the three projections of the MLP have a bias.
        attention_scale: factor on query·key.
        embed_scale: factor on embeddings, rounded to the model's dtype as in the original implementation
            (sqrt(3072) is 55.5 in bfloat16); None for no factor.
        final_softcap: logits become cap * tanh(logits / cap); None for no cap.
    """

    norm_eps: float
    norm_offset: float = 0.0
    norms: LayerNorms = field(default_factory=LayerNorms)
    has_head_norm: bool = False
    activation: str
    rope: RopeConfig
    sliding_rope: RopeConfig
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    attention_scale: float
    embed_scale: float | None = None
    final_softcap: float | None = None

    @property
    def max_context(self) -> int:
        """Longest sequence, in tokens, that the positions support; yarn extends the length of pretraining."""
        if self.rope.type != "yarn":
            return self.max_position_embeddings
        return max(self.max_position_embeddings, int(self.rope.original_length * self.rope.factor))

    def _limit_reason(self) -> str:
        """With RoPE "dynamic", keys that are already in the cache would have to be rotated again."""
        return ', the original length of its RoPE "dynamic"' if self.rope.type == "dynamic" else ""

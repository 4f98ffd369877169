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
from itertools import count

from chairlift.core.numeric_limits import MAX_INT32
from chairlift.model.config.experts_config import ExpertsConfig
from chairlift.model.config.model_config import ModelConfig
from chairlift.model.config.rope_config import RopeConfig
from chairlift.model.config.state_layers import StateLayerConfig, StateShape

HEAD, PROJECTION = "head", "projection"
"""Values of DecoderConfig.head_norm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryScaling:
    """A factor on queries: 1 + beta * ln(1 + floor(position / length))."""

    beta: float
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorms:
    """The norms of a layer by their names in the checkpoint; None where there is none."""

    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None

    @property
    def count(self) -> int:
        """Number of norms over the hidden size."""
        names = (self.before_attention, self.after_attention, self.before_mlp, self.after_mlp)
        return sum(name is not None for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertNorms:
    """The further norms of a layer whose experts stand beside its MLP, by their names in the checkpoint."""

    after_mlp: str
    before_experts: str
    after_experts: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayerInputConfig:
    """An input of each layer beside the hidden state, made of the token's row in a second embedding table.

    Attributes:
        size: numbers of a layer's input.
        vocab_size: rows of the table, at least as many as tokens.
    """

    size: int
    vocab_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig(ModelConfig):
    """The checked values of an architecture of Chairlift's own; `architecture` is a key of ARCHITECTURES.

    Attributes:
        norm_eps: added to the mean square under the root.
        norm_offset: is added to the weights of all norms.
        norm_in_float32: whether norms multiply by their weights in float32, and not in the activations' dtype.
        has_float32_norms: with norm_in_float32: whether these weights are float32 in a float64 model, too.
        norms: the norms of a layer.
        head_norm: HEAD where each query and key head is normalised, PROJECTION where all query heads are together, and
            all key heads; "" without.
        has_value_norm: whether each value head is divided by its root mean square.
        value_is_key: layers, counted among those with attention, without v_proj: a value is its key before norm and
            rotation.
        activation: of the gate, one of ACTIVATIONS.
        experts: the experts of a layer; None for a decoder without.
        expert_norms: norms around the MLP and experts that stand beside each other; None where experts replace the MLP.
        dense_layers: layers that have no experts in a decoder with experts.
        mlp_sizes: neurons of the MLP of each layer; empty for intermediate_size in all.
        per_layer_inputs: the input of each layer beside the hidden state; None without.
        has_layer_scalar: whether a number of each layer multiplies the hidden state at its end.
        state_layers: the sizes of each layer that keeps a state instead of keys and values, None for one with
            attention; empty for a decoder without such layers.
        has_output_gate: whether what attention returns is multiplied by the sigmoid of a gate of the same width.
        has_sinks: whether attention has a logit for each query head that takes weight from the keys.
        unrotated_layers: layers without RoPE.
        query_scaling: factor on queries by position; None for none.
        rope: RoPE of layers with full attention.
        sliding_rope: RoPE of layers with a window.
        qkv_bias: whether query, key and value projections have a bias.
        output_bias: whether the projection after attention has a bias.
        mlp_bias: whether the three projections of the MLP have a bias.
        attention_scale: factor on query·key.
        attention_softcap: query·key becomes cap * tanh(query·key / cap); None for no cap.
        residual_multiplier: factor on what attention and MLP add to the residual.
        embed_scale: factor on embeddings, rounded to the model's dtype as in the original implementation
            (sqrt(3072) is 55.5 in bfloat16); None for no factor.
        logits_divisor: logits are divided by it.
        final_softcap: logits become cap * tanh(logits / cap); None for no cap.
    """

    norm_eps: float
    norm_offset: float = 0.0
    norm_in_float32: bool = False
    has_float32_norms: bool = False
    norms: LayerNorms = field(default_factory=LayerNorms)
    head_norm: str = ""
    has_value_norm: bool = False
    value_is_key: tuple[int, ...] = ()
    activation: str
    experts: ExpertsConfig | None = None
    expert_norms: ExpertNorms | None = None
    dense_layers: tuple[int, ...] = ()
    mlp_sizes: tuple[int, ...] = ()
    per_layer_inputs: PerLayerInputConfig | None = None
    has_layer_scalar: bool = False
    state_layers: tuple[StateLayerConfig | None, ...] = ()
    has_output_gate: bool = False
    has_sinks: bool = False
    rope: RopeConfig
    sliding_rope: RopeConfig
    unrotated_layers: tuple[int, ...] = ()
    query_scaling: QueryScaling | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    attention_scale: float
    attention_softcap: float | None = None
    residual_multiplier: float = 1.0
    embed_scale: float | None = None
    logits_divisor: float = 1.0
    final_softcap: float | None = None

    def experts_of(self, layer: int) -> ExpertsConfig | None:
        """Return the experts of a layer; None for one with an MLP."""
        return None if layer in self.dense_layers else self.experts

    def mlp_size_of(self, layer: int) -> int:
        """Return the neurons of the MLP of a layer."""
        return self.mlp_sizes[layer] if self.mlp_sizes else self.intermediate_size

    @property
    def widest_mlp(self) -> int:
        """Neurons of the widest MLP; experts do not count."""
        return max(self.mlp_sizes, default=self.intermediate_size)

    @property
    def mlp_width(self) -> int:
        """See ModelConfig: neurons of all experts of a row."""
        if self.experts is None:
            return self.widest_mlp
        experts = self.experts.router.experts_per_token * self.experts.intermediate_size + self.experts.shared_size
        has_mlp = bool(self.dense_layers) or self.expert_norms is not None
        return max(experts, self.widest_mlp if has_mlp else 0)

    @property
    def inputs_width(self) -> int:
        """See ModelConfig."""
        return 0 if self.per_layer_inputs is None else self.num_layers * self.per_layer_inputs.size

    @property
    def layer_ropes(self) -> tuple[RopeConfig | None, ...]:
        """The rotation of each layer; None without one, as in a layer that keeps a state."""
        windows = iter(self.layer_windows)
        ropes = (
            None if self.state_of(layer) else self.sliding_rope if next(windows) else self.rope
            for layer in range(self.num_layers)
        )
        return tuple(None if layer in self.unrotated_layers else rope for layer, rope in enumerate(ropes))

    @property
    def attention_places(self) -> tuple[int | None, ...]:
        """The number of each layer among those with attention; None for a layer that keeps a state."""
        numbers = count()
        return tuple(None if self.state_of(layer) else next(numbers) for layer in range(self.num_layers))

    def state_of(self, layer: int) -> StateLayerConfig | None:
        """Return the sizes of a layer that keeps a state; None for one with attention."""
        return self.state_layers[layer] if self.state_layers else None

    @property
    def state_shapes(self) -> tuple[StateShape, ...]:
        """See ModelConfig."""
        return tuple(layer.state for layer in self.state_layers if layer is not None)

    def context_length(self, requested: int | None = None) -> int:
        """See ModelConfig. With RoPE "longrope" it is the length of the short factors unless more is requested.

        transformers changes the factors within a sequence that passes this length. All sequences of this engine have
        the same factors, the long ones where max_model_len is greater.
        """
        if requested is None and self.rope.long_divisors:
            return min(self.rope.original_length, self.max_position_embeddings)
        return super(DecoderConfig, self).context_length(requested)

    @property
    def max_context(self) -> int:
        """Longest sequence, in tokens, that the positions support; yarn extends the length of pretraining."""
        if self.rope.type != "yarn":
            return self.max_position_embeddings
        return max(self.max_position_embeddings, int(min(self.rope.original_length * self.rope.factor, MAX_INT32)))

    def _limit_reason(self) -> str:
        """With RoPE "dynamic", keys that are already in the cache would have to be rotated again."""
        return ', the original length of its RoPE "dynamic"' if self.rope.type == "dynamic" else ""

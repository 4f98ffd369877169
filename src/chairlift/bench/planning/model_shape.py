"""ModelShape: the numbers of parameters and of KV cache elements of a decoder, as its config.json determines them.

For an architecture that Chairlift loads, the sizes come from the loader's own config. For other model types of
VARIANTS the parts that differ from Llama are known, and the counts equal those of transformers. A model type that is
neither is counted like Llama with the experts that its fields name; its shape is then not exact.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chairlift.bench.planning.config_values import ConfigValues
from chairlift.bench.planning.layer_mlp import LayerMLP, layer_mlps, loaded_mlps
from chairlift.bench.planning.layer_state import LayerState, layer_state
from chairlift.core.numeric_limits import MAX_INT32

HEAD_NORM, WIDE_NORM = "head", "projection"
"""Norms on queries and keys: one per head width, or one over all heads together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSize:
    """The attention of one layer, in elements.

    Attributes:
        matrices: weights of its projections.
        vectors: biases, norms of queries and keys, and sinks.
        num_kv_heads: 1 for latent attention, whose cache every head reads.
        kv_elements: elements that the KV cache holds of one token; 0 for a layer that reads those of another one.
        pair_width: products of one query with one key and its value: multiply-adds of a pair of tokens.
    """

    matrices: int
    vectors: int
    num_kv_heads: int
    kv_elements: int
    pair_width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder; sizes are in elements.

    Attributes:
        architecture: the first of `architectures` in config.json, else its model_type.
        num_kv_heads: of most layers; 1 for latent attention, whose cache every head reads.
        head_dim: width of a query head, of most layers.
        layer_norms: elements of the norms of one layer, without those of queries and keys.
        attention: the attention of each layer that has one.
        mlps: the MLP of each layer.
        layer_windows: tokens that each layer with attention sees; None for all.
        states: each layer that keeps a state, None for one with attention; empty for a model without such layers.
        inputs_size: numbers of a layer's input beside the hidden state; 0 without.
        inputs_vocab_size: rows of the table of these inputs, of all layers.
        is_tied: the lm_head is the embedding table.
        extra_embedding: elements of learned positions; 0 with rotation.
        max_positions: tokens that the model was trained for.
        dtype: of the weights in config.json; None where it has none.
        quantization: `quantization_config` of config.json; empty without one.
        is_exact: the numbers of parameters are those of the model; False where they are estimated.
    """

    architecture: str
    hidden_size: int
    vocab_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    layer_norms: int
    attention: tuple[AttentionSize, ...]
    mlps: tuple[LayerMLP, ...]
    layer_windows: tuple[int | None, ...]
    states: tuple[LayerState | None, ...] = ()
    inputs_size: int = 0
    inputs_vocab_size: int = 0
    is_tied: bool
    max_positions: int
    dtype: str | None
    quantization: Mapping[str, Any]
    is_exact: bool

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.mlps)

    @property
    def state_elements(self) -> int:
        """Numbers of the states of one sequence."""
        return sum(state.elements for state in self.states if state is not None)

    @property
    def mixers(self) -> tuple[AttentionSize | LayerState, ...]:
        """What each layer has before its MLP: attention or a state."""
        attention = iter(self.attention)
        states = self.states or (None,) * self.num_layers
        return tuple(next(attention) if state is None else state for state in states)

    @property
    def mixer_matrices(self) -> tuple[int, ...]:
        """Weights of what each layer has in the place of attention, or of its attention."""
        return tuple(mixer.matrices for mixer in self.mixers)

    @property
    def mixer_vectors(self) -> tuple[int, ...]:
        """The same for its other parameters."""
        return tuple(mixer.vectors for mixer in self.mixers)

    @property
    def table(self) -> int:
        """Elements of the embedding table."""
        return self.vocab_size * self.hidden_size

    @property
    def head(self) -> int:
        """Elements of an lm_head of its own; 0 where it is the embedding table."""
        return 0 if self.is_tied else self.table

    @property
    def inputs_table(self) -> int:
        """Elements of the table of inputs of layers; of a token one row is read."""
        return self.inputs_vocab_size * self.num_layers * self.inputs_size

    @property
    def inputs_projection(self) -> int:
        """Weights of the projection of embeddings to inputs of layers."""
        return self.hidden_size * self.num_layers * self.inputs_size

    @property
    def matrices(self) -> int:
        """Weights of all projections in the layers: what weight quantization applies to."""
        return sum(self.mixer_matrices) + sum(mlp.matrices for mlp in self.mlps)

    @property
    def vectors(self) -> int:
        """Norms, biases and routers of all layers, and the last norm."""
        layers = sum(self.mixer_vectors) + self.num_layers * self.layer_norms
        return layers + sum(mlp.vectors for mlp in self.mlps) + self.hidden_size + self.inputs_size

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.table + self.head + self.inputs_table + self.inputs_projection + self.matrices + self.vectors

    @property
    def active_matrices(self) -> int:
        """Weights of the layers' projections that one token is multiplied with."""
        return sum(self.mixer_matrices) + sum(mlp.active_matrices for mlp in self.mlps)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses: all but the experts that its router leaves out."""
        return self.parameters - self.matrices + self.active_matrices

    @property
    def num_experts(self) -> int:
        """Experts of a layer that has some; 0 for a dense model."""
        return max(mlp.num_experts for mlp in self.mlps)

    @property
    def longest_window(self) -> int | None:
        """The largest window, or None if a layer sees everything."""
        windows = [window for window in self.layer_windows if window is not None]
        return max(windows) if len(windows) == len(self.layer_windows) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What a model type has beside Llama's parts.

    Attributes:
        norms: norms over the hidden size in a layer.
        head_norm: norms on queries and keys: HEAD_NORM, WIDE_NORM or "".
        qkv_bias: a bias on queries, keys and values whatever `attention_bias` is.
        has_sinks: one more parameter for each head.
        has_expert_bias: every projection of an expert, and the router, has a bias.
        alternates: without layer_types every second layer has the window, from the first one.
        has_window: `sliding_window` applies, where the fields do not say otherwise.
        is_tied: the default of tie_word_embeddings.
    """

    norms: int = 2
    head_norm: str = ""
    qkv_bias: bool = False
    has_sinks: bool = False
    has_expert_bias: bool = False
    alternates: bool = False
    has_window: bool = False
    is_tied: bool = False


VARIANTS: Mapping[str, Variant] = {
    "llama": Variant(), "mistral": Variant(has_window=True), "mixtral": Variant(has_window=True),
    "phi3": Variant(has_window=True), "granite": Variant(), "olmo2": Variant(head_norm=WIDE_NORM),
    "qwen2": Variant(qkv_bias=True), "qwen3": Variant(head_norm=HEAD_NORM),
    "qwen2_moe": Variant(qkv_bias=True), "qwen3_moe": Variant(head_norm=HEAD_NORM),
    "gemma2": Variant(norms=4, alternates=True, has_window=True, is_tied=True),
    "gpt_oss": Variant(has_sinks=True, has_expert_bias=True, alternates=True, has_window=True),
    "deepseek_v2": Variant(), "deepseek_v3": Variant(),
}  # fmt: skip
"""Model types whose parameters are counted exactly, beside the architectures that Chairlift loads."""


def shape_of_loaded(config: Mapping[str, Any], content: Mapping[str, Any]) -> ModelShape:
    """Return the shape of an architecture that Chairlift loads.

    Args:
        config: the fields of the loader's ModelConfig.
        content: the object in config.json.
    """
    hidden, inter = config["hidden_size"], config["intermediate_size"]
    states = tuple(None if each is None else layer_state(each, hidden) for each in config["state_layers"])
    inputs = config["per_layer_inputs"] or {"size": 0, "vocab_size": 0}
    return ModelShape(
        architecture=config["architecture"], hidden_size=hidden, vocab_size=config["vocab_size"],
        num_heads=config["num_heads"],
        num_kv_heads=config["num_kv_heads"], head_dim=config["head_dim"],
        intermediate_size=max(config["mlp_sizes"], default=inter), inputs_size=inputs["size"],
        inputs_vocab_size=inputs["vocab_size"],
        layer_norms=sum(name is not None for name in config["norms"].values()) * hidden,
        attention=tuple(_loaded_attention(config, layer) for layer in range(len(config["layer_windows"]))),
        states=states, mlps=loaded_mlps(config, hidden), layer_windows=tuple(config["layer_windows"]),
        is_tied=config["tie_word_embeddings"], max_positions=config["max_position_embeddings"], dtype=config["dtype"],
        quantization=content.get("quantization_config") or {}, is_exact=True,
    )  # fmt: skip


def _loaded_attention(config: Mapping[str, Any], layer: int) -> AttentionSize:
    """Return the attention of a layer, counted among layers with attention."""
    hidden, heads = config["hidden_size"], config["num_heads"]
    shape = config["layer_shapes"][layer] if config["layer_shapes"] else config
    width, kv_heads = shape["head_dim"], shape["num_kv_heads"]
    has_own_kv = not config["kv_sources"] or config["kv_sources"][layer] is None
    inner, keys = heads * width, kv_heads * width * has_own_kv
    values, gate = keys * (layer not in config["value_is_key"]), inner * config["has_output_gate"]
    vectors = {HEAD_NORM: width * (1 + has_own_kv), WIDE_NORM: inner + keys}.get(config["head_norm"], 0)
    vectors += (inner + keys + values + gate) * config["qkv_bias"] + hidden * config["output_bias"]
    return AttentionSize(
        matrices=hidden * (2 * inner + keys + values + gate), vectors=vectors + heads * config["has_sinks"],
        num_kv_heads=kv_heads, kv_elements=2 * keys, pair_width=2 * inner,
    )  # fmt: skip


def shape_of_content(content: Mapping[str, Any]) -> ModelShape:
    """Return the shape of any decoder from the object in its config.json.

    Raises ConfigError for a model that is not a decoder, or whose sizes are missing or wrong.
    """
    values = ConfigValues.of(content)
    variant, model_type = VARIANTS.get(values.model_type), values.model_type
    known = variant or Variant()
    hidden, heads, layers = (
        values.size("hidden_size"),
        values.size("num_attention_heads"),
        values.size("num_hidden_layers"),
    )
    kv_heads = values.size("num_key_value_heads", heads)
    width = values.size("head_dim", hidden // heads)
    values.check(kv_heads <= heads and heads % kv_heads == 0, f"{heads} heads cannot share {kv_heads} key/value heads")
    if "kv_lora_rank" in values:
        attention, kv_heads = AttentionSize(**latent_attention(values, hidden, heads)), 1
        width = values.size("qk_nope_head_dim") + values.size("qk_rope_head_dim")
    else:
        attention = _attention(values, known, hidden, heads, kv_heads, width)
    return ModelShape(
        architecture=next(iter(values.architectures), model_type), hidden_size=hidden,
        vocab_size=values.size("vocab_size"), num_heads=heads, num_kv_heads=kv_heads, head_dim=width,
        intermediate_size=values.size("intermediate_size"), layer_norms=known.norms * hidden,
        attention=(attention,) * layers,
        mlps=layer_mlps(values, hidden, layers, has_bias=known.has_expert_bias),
        layer_windows=_windows(values, known, layers), is_tied=values.flag("tie_word_embeddings", known.is_tied),
        max_positions=values.size("max_position_embeddings", MAX_INT32), dtype=values.dtype,
        quantization=content.get("quantization_config") or {},
        is_exact=variant is not None and not values.is_part,
    )  # fmt: skip


def _attention(
    values: ConfigValues, variant: Variant, hidden: int, heads: int, kv_heads: int, width: int
) -> AttentionSize:
    inner, kv_inner = heads * width, kv_heads * width
    has_bias = values.flag("attention_bias", variant.has_sinks)
    vectors = (inner + 2 * kv_inner) * (has_bias or variant.qkv_bias) + hidden * has_bias + heads * variant.has_sinks
    vectors += {HEAD_NORM: 2 * width, WIDE_NORM: inner + kv_inner}.get(variant.head_norm, 0)
    return AttentionSize(
        matrices=2 * hidden * (inner + kv_inner), vectors=vectors, num_kv_heads=kv_heads, kv_elements=2 * kv_inner,
        pair_width=2 * inner,
    )  # fmt: skip


def _windows(values: ConfigValues, variant: Variant, layers: int) -> tuple[int | None, ...]:
    window = values.count("sliding_window") or None
    kinds: Sequence[Any] | None = values.list("layer_types")
    if window is None or not values.flag("use_sliding_window", True):
        return (None,) * layers
    if kinds is not None:
        values.check(len(kinds) == layers, f"layer_types has {len(kinds)} entries for {layers} layers")
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    if variant.alternates:
        return tuple(None if layer % 2 else window for layer in range(layers))
    return (window if variant.has_window else None,) * layers


def latent_attention(values: ConfigValues, hidden: int, heads: int) -> dict[str, int]:
    """Return the fields of AttentionSize of multi-head latent attention, which caches one compressed row for all heads.

    Source of the parts: DeepSeek-V2 (arXiv 2405.04434), section 2.1, and the field names of its config.json. Raises
    ConfigError for a missing or wrong field.
    """
    rank, query_rank = values.size("kv_lora_rank"), values.optional_size("q_lora_rank")
    plain, rotated = values.size("qk_nope_head_dim"), values.size("qk_rope_head_dim")
    value_width = values.size("v_head_dim")
    query_outputs = heads * (plain + rotated)
    queries = hidden * query_outputs if query_rank is None else query_rank * (hidden + query_outputs)
    keys = hidden * (rank + rotated) + rank * heads * (plain + value_width)
    bias = values.flag("attention_bias") * ((query_rank or 0) + rank + rotated + hidden)
    return {
        "matrices": queries + keys + heads * value_width * hidden,
        "vectors": rank + (query_rank or 0) + bias,
        "num_kv_heads": 1,
        "kv_elements": rank + rotated,
        "pair_width": heads * (plain + rotated + value_width),
    }

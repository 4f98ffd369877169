"""GEMMA4: Gemma 4, and the text part of its multimodal wrapper: heads by kind of layer, and layers without KV.

    E2B, E4B    an input of each layer by token; the last layers read keys and values of earlier ones
    26B-A4B     experts beside the MLP
    31B         values are keys in layers with full attention

Source: transformers 5.23 models/gemma4.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from chairlift.core.errors import ModelError
from chairlift.model.config.architectures.architecture import Architecture
from chairlift.model.config.architectures.decoder_fields import (
    FULL,
    SLIDING,
    check_heads,
    decoder_config,
    windows_of_kinds,
)
from chairlift.model.config.architectures.gemma2 import GEMMA_NORMS
from chairlift.model.config.config_reader import ConfigReader, invalid_field
from chairlift.model.config.decoder_config import HEAD, DecoderConfig, ExpertNorms, PerLayerInputConfig
from chairlift.model.config.experts_config import ExpertFields, ExpertRouterConfig, named_activation, read_experts
from chairlift.model.config.layer_groups import AttentionShape
from chairlift.model.config.rope_config import RopeConfig, lacking_feature, read_ropes

_SHAPE_FIELDS = ("head_dim", "num_key_value_heads")
"""Fields that per_layer_config may have."""

_UNUSED_OF_READERS = tuple(f"self_attn.{name}" for name in ("k_proj", "v_proj", "k_norm", "v_norm"))
"""Modules that published files have also in layers that read the keys and values of another one."""


def _read_config(architecture: str, fields: ConfigReader) -> DecoderConfig:
    layers, bias = fields.size("num_hidden_layers"), fields.flag("attention_bias")
    _check_causal(fields)
    kinds = _layer_kinds(fields, layers)
    windows = windows_of_kinds(kinds, fields.size_or_none("sliding_window"), layers)
    shapes, sources = _layer_shapes(fields, kinds), _kv_sources(fields, kinds)
    for layer, source in enumerate(sources):
        if source is not None and shapes[layer] != shapes[source]:
            raise ModelError(f"config.json: layer {layer} reads the keys of layer {source}, which has other heads")
    rope, sliding_rope = _ropes(fields, kinds)
    shares_value = fields.flag("attention_k_eq_v")
    config = decoder_config(
        architecture, fields, windows, kv_sources=sources, rope=rope, sliding_rope=sliding_rope, qkv_bias=bias,
        output_bias=bias, norms=GEMMA_NORMS, norm_in_float32=True, has_float32_norms=True, head_norm=HEAD,
        has_value_norm=True, attention_scale=1.0, embed_scale=fields.size("hidden_size") ** 0.5,
        value_is_key=tuple(
            layer for layer, kind in enumerate(kinds)
            if shares_value and kind == FULL and not (sources and sources[layer] is not None)
        ),
        has_layer_scalar=True, per_layer_inputs=_per_layer_inputs(fields), mlp_sizes=_mlp_sizes(fields, sources),
        final_softcap=fields.number_or_none("final_logit_softcapping"), **_experts(fields),
    )  # fmt: skip
    is_uniform = len(set(shapes)) == 1
    return replace(
        config, num_kv_heads=shapes[0].num_kv_heads, head_dim=shapes[0].head_dim,
        layer_shapes=() if is_uniform else shapes,
    )  # fmt: skip


def _check_causal(fields: ConfigReader) -> None:
    """Raise ModelError unless text is causal; "vision" is about the tokens of images alone."""
    value = fields.get("use_bidirectional_attention")
    if value == "all":
        raise ModelError("config.json: use_bidirectional_attention 'all' is not supported; only causal attention is")
    if value not in (None, "vision"):
        raise invalid_field("use_bidirectional_attention", f"must be all, vision or null, got {value!r}")


def _layer_kinds(fields: ConfigReader, layers: int) -> tuple[str, ...]:
    """Return layer_types. The last layer is full whatever the file says, as in transformers."""
    kinds = fields.names("layer_types")
    if kinds is None:
        kinds = tuple(SLIDING if (layer + 1) % 6 else FULL for layer in range(layers))
    return (*kinds[:-1], FULL)


def _layer_shapes(fields: ConfigReader, kinds: Sequence[str]) -> tuple[AttentionShape, ...]:
    """Return the heads of each layer, from per_layer_config or from the fields of full layers."""
    own = {name: fields.size(name) for name in _SHAPE_FIELDS}
    overrides = {layer: _full_layer(fields) for layer, kind in enumerate(kinds) if kind == FULL}
    if fields.raw("per_layer_config") is not None:
        overrides = _per_layer_config(fields.object("per_layer_config"), len(kinds))
    found = []
    for layer in range(len(kinds)):
        values = {**own, **overrides.get(layer, {})}
        check_heads(fields.size("num_attention_heads"), values["num_key_value_heads"], values["head_dim"])
        found.append(AttentionShape(values["num_key_value_heads"], values["head_dim"]))
    return tuple(found)


def _full_layer(fields: ConfigReader) -> dict[str, int]:
    values = {"head_dim": fields.size("global_head_dim")}
    if fields.flag("attention_k_eq_v") and "num_global_key_value_heads" in fields:
        values["num_key_value_heads"] = fields.size("num_global_key_value_heads")
    return values


def _per_layer_config(content: Mapping[str, Any], layers: int) -> dict[int, dict[str, int]]:
    """Read per_layer_config, in which transformers writes what differs from the fields of all layers."""
    found = {}
    for key, values in content.items():
        if not key.isdecimal() or int(key) >= layers:
            raise invalid_field("per_layer_config", f"has layer {key!r}, but there are {layers} layers")
        if not isinstance(values, Mapping):
            raise invalid_field("per_layer_config", f"must have an object for layer {key}")
        if unknown := sorted(set(values) - set(_SHAPE_FIELDS)):
            raise lacking_feature(f"per_layer_config with {unknown[0]} is not supported")
        read = ConfigReader(values, {})
        found[int(key)] = {name: read.size(name) for name in values}
    return found


def _kv_sources(fields: ConfigReader, kinds: Sequence[str]) -> tuple[int | None, ...]:
    """Return DecoderConfig.kv_sources: the last layers read those of the last one of their kind before them."""
    count = fields.count("num_kv_shared_layers")
    if not count:
        return ()
    first = len(kinds) - count
    own = kinds[: max(0, first)]
    if missing := [kind for kind in kinds if kind not in own]:
        raise ModelError(
            f"config.json: num_kv_shared_layers is {count}, but no layer before them has {missing[0]}",
            field="num_kv_shared_layers",
        )
    last = {kind: layer for layer, kind in enumerate(own)}
    return tuple(None if layer < first else last[kind] for layer, kind in enumerate(kinds))


def _ropes(fields: ConfigReader, kinds: Sequence[str]) -> tuple[RopeConfig, RopeConfig]:
    """Return the rotations of full and of sliding layers."""
    parameters = fields.object("rope_parameters")
    if missing := [kind for kind in dict.fromkeys(kinds) if parameters.get(kind) is None]:
        raise invalid_field("rope_parameters", f"has no {missing[0]}")
    parameters.setdefault(SLIDING, parameters[FULL])  # of a model without sliding layers
    by_kind = ConfigReader({"rope_parameters": parameters}, {})
    return read_ropes(by_kind, fields.size("max_position_embeddings"), by_layer_type=True)


def _per_layer_inputs(fields: ConfigReader) -> PerLayerInputConfig | None:
    size = fields.count("hidden_size_per_layer_input")
    if not size:
        return None
    rows, vocab_size = fields.size("vocab_size_per_layer_input"), fields.size("vocab_size")
    if rows < vocab_size:
        raise invalid_field("vocab_size_per_layer_input", f"is {rows}, but there are {vocab_size} tokens")
    return PerLayerInputConfig(size=size, vocab_size=rows)


def _mlp_sizes(fields: ConfigReader, sources: Sequence[int | None]) -> tuple[int, ...]:
    """Return DecoderConfig.mlp_sizes: twice as many neurons in layers that read keys and values of another one."""
    if not fields.flag("use_double_wide_mlp"):
        return ()
    size = fields.size("intermediate_size")
    return tuple(size if source is None else 2 * size for source in sources)


def _with_norm(router: ExpertRouterConfig, fields: ConfigReader) -> ExpertRouterConfig:
    return replace(router, norm_eps=fields.number("rms_norm_eps"))


EXPERTS = ExpertFields(
    defaults={"hidden_activation": "gelu_pytorch_tanh", "enable_moe_block": False, "rms_norm_eps": 1e-6},
    enabled_by="enable_moe_block",
    per_token="top_k_experts",
    router=_with_norm,
    activation=partial(named_activation, name="hidden_activation"),
    renamed=(
        (r"(\.layers\.\d+)\.experts\.", r"\1.mlp.experts."),
        (r"(\.layers\.\d+)\.router\.proj\.", r"\1.mlp.gate."),
        (r"(\.layers\.\d+)\.router\.", r"\1.mlp.gate."),
    ),
)


def _experts(fields: ConfigReader) -> dict[str, Any]:
    """Return the fields of DecoderConfig for experts beside the MLP; empty without them."""
    if not fields.flag("enable_moe_block"):
        return {}
    experts = read_experts(EXPERTS, fields)
    if experts is None:
        raise invalid_field("num_experts", "must be at least 1 with enable_moe_block")
    norms = ExpertNorms(
        after_mlp="post_feedforward_layernorm_1", before_experts="pre_feedforward_layernorm_2",
        after_experts="post_feedforward_layernorm_2",
    )  # fmt: skip
    return {"experts": experts, "expert_norms": norms}


def unused_of_readers(config: DecoderConfig, name: str) -> bool:
    """Return whether a tensor is of keys or values of a layer that reads those of another one."""
    start, _, rest = name.partition("model.layers.")
    number, _, module = rest.partition(".")
    if start or not number.isdecimal() or int(number) >= config.num_layers or config.has_own_kv(int(number)):
        return False
    return module.rpartition(".")[0] in _UNUSED_OF_READERS


_OTHER_INPUTS = ("vision_tower.", "audio_tower.", "embed_vision.", "embed_audio.")

GEMMA4 = Architecture(
    names=("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"),
    models="Gemma 4, the text part: E2B, E4B, 31B and 26B-A4B",
    defaults={
        **EXPERTS.defaults,
        "vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "global_head_dim": 512,
        "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 131072, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True, "eos_token_id": 1, "bos_token_id": 2, "attention_bias": False,
        "sliding_window": 512, "vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256,
        "attention_k_eq_v": False, "num_kv_shared_layers": 0, "use_double_wide_mlp": False,
        "rope_parameters": {
            SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
            FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
        },
    },
    read_config=_read_config,
    ignored_prefixes=(*_OTHER_INPUTS, *(f"model.{name}" for name in _OTHER_INPUTS)),
    is_unused=unused_of_readers,
    experts=EXPERTS,
)  # fmt: skip

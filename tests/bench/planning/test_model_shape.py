"""ModelShape: numbers of parameters against built models: the project's own, and those of transformers."""

import math
import os
from dataclasses import asdict
from typing import Any

from chairlift.bench.planning.model_shape import shape_of_content
from support_planning import TINY

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import pytest
import torch
import transformers

from chairlift.bench.planning.model_shape import shape_of_loaded
from chairlift.core.errors import ConfigError
from chairlift.model.config.architectures.config_parsing import parse_decoder_config
from chairlift.model.loading.model_building import parameter_shapes
from support_checkpoints import PUBLISHED
from support_models import VARIANTS, tiny_config
from support_planning import published_shape
from support_shares import for_each

MIXTURE = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {
    "num_key_value_heads": 4, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "first_k_dense_replace": 1, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
}  # fmt: skip
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("Mixtral", {"num_local_experts": 8, "num_experts_per_tok": 2}),
    "qwen2-moe": ("Qwen2Moe", {
        **MIXTURE, "num_experts": 8, "shared_expert_intermediate_size": 48, "decoder_sparse_step": 2,
    }),
    "qwen3-moe": ("Qwen3Moe", {**MIXTURE, "num_experts": 8, "mlp_only_layers": [1], "head_dim": 32}),
    "gpt-oss": ("GptOss", {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 16}),
    "deepseek-v2": ("DeepseekV2", {**LATENT, "q_lora_rank": None}),
    "deepseek-v3": ("DeepseekV3", {**LATENT, "q_lora_rank": 24, "n_group": 2, "topk_group": 1}),
    "phi3": ("Phi3", {}), "gemma2": ("Gemma2", {"head_dim": 16}), "olmo2": ("Olmo2", {}),
    "granite": ("Granite", {"attention_bias": True, "mlp_bias": True}),
    "llama": ("Llama", {"attention_bias": True, "mlp_bias": True}), "mistral": ("Mistral", {}),
    "qwen2": ("Qwen2", {}), "qwen3": ("Qwen3", {}),
}  # fmt: skip


def built_parameters(kind: str, config: Any) -> int:
    """Return the elements of a model's tensors; DeepSeek's correction of router scores is a buffer there."""
    with torch.device("meta"):
        model = getattr(transformers, f"{kind}ForCausalLM")(config)
    buffers = [tensor for name, tensor in model.named_buffers() if "correction" in name]
    return sum(tensor.numel() for tensor in [*model.parameters(), *buffers])


@for_each("name", PUBLISHED)
def test_a_published_model_has_the_parameters_that_its_loader_builds(name: str) -> None:
    config = parse_decoder_config(PUBLISHED[name])
    shape = shape_of_loaded(asdict(config), PUBLISHED[name])
    assert shape.parameters == sum(math.prod(each) for each in parameter_shapes(config).values())
    assert shape.is_exact and shape.active_parameters == shape.parameters and shape.num_experts == 0


@for_each("kind", VARIANTS)
def test_every_variant_of_the_loader_is_counted(kind: str) -> None:
    content = tiny_config(kind).to_dict() | {"architectures": [VARIANTS[kind][1]]}
    config = parse_decoder_config(content)
    shape = shape_of_loaded(asdict(config), content)
    assert shape.parameters == sum(math.prod(each) for each in parameter_shapes(config).values())
    assert shape.layer_windows == config.layer_windows


@for_each("name", OTHERS)
def test_other_model_types_have_the_parameters_that_transformers_builds(name: str) -> None:
    kind, fields = OTHERS[name]
    config = getattr(transformers, f"{kind}Config")(**{"pad_token_id": 0, **TINY, **fields})
    shape = shape_of_content(config.to_dict())
    assert shape.parameters == built_parameters(kind, config) and shape.is_exact


def test_the_two_ways_to_read_a_config_agree() -> None:
    for name, content in PUBLISHED.items():
        if not name.startswith("gemma"):
            assert shape_of_content(content).parameters == published_shape(name).parameters, name


@for_each(
    ("fields", "windows"),
    [
        ({"model_type": "mistral", "sliding_window": 8}, (8, 8, 8, 8)),
        ({"model_type": "mistral", "sliding_window": None}, (None,) * 4),
        ({"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": False}, (None,) * 4),
        ({"model_type": "gemma2", "sliding_window": 8}, (8, None, 8, None)),
        ({"model_type": "llama", "sliding_window": 8}, (None,) * 4),
        ({"model_type": "new", "sliding_window": 8,
          "layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention"]},
         (None, 8, None, None)),
    ],
)  # fmt: skip
def test_windows_of_layers(fields: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    assert shape_of_content({**TINY, **fields}).layer_windows == windows


def test_an_unknown_model_type_is_counted_like_llama_and_is_not_exact() -> None:
    shape, llama = shape_of_content({**TINY, "model_type": "new"}), shape_of_content({**TINY, "model_type": "llama"})
    assert shape.parameters == llama.parameters and not shape.is_exact and llama.is_exact
    wrapped = shape_of_content({"model_type": "new_vl", "text_config": {**TINY, "model_type": "llama"}})
    assert wrapped.parameters == llama.parameters and not wrapped.is_exact


def test_active_parameters_leave_out_the_experts_that_a_token_does_not_use() -> None:
    shape = shape_of_content({**TINY, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2})
    assert shape.parameters - shape.active_parameters == 4 * 6 * 3 * 64 * 96 and shape.num_experts == 8


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"is_encoder_decoder": True}, "config.json: the model is an encoder-decoder"),
        ({"hidden_size": None}, "config.json: hidden_size is missing"),
        ({"num_key_value_heads": 3}, "config.json: 4 heads cannot share 3 key/value heads"),
        ({"sliding_window": 8, "layer_types": ["full_attention"]}, "config.json: layer_types has 1 entries for 4"),
    ],
)
def test_a_config_that_is_no_decoder_is_an_error(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        shape_of_content({**TINY, **fields})
    assert caught.value.message.startswith(message) and caught.value.details["option"] == "model"


def test_the_cache_holds_one_compressed_row_for_all_heads() -> None:
    latent = {"kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
    shape = shape_of_content({**TINY, "model_type": "deepseek_v3", **latent})
    assert shape.attention[0].kv_elements == 32 + 8 and shape.num_kv_heads == 1 and shape.head_dim == 24
    assert shape.attention[0].pair_width == 4 * (24 + 16)

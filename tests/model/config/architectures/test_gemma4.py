"""Gemma 4: its parameters and fields, the heads of each layer, and the wrapper, whose text part is the same model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from chairlift.core.errors import ModelError, UnsupportedArchitecture
from chairlift.model.config.architectures.config_parsing import parse_decoder_config
from chairlift.model.config.architectures.gemma4 import EXPERTS, unused_of_readers
from chairlift.model.config.config_reader import ConfigReader
from chairlift.model.config.decoder_config import DecoderConfig, PerLayerInputConfig
from chairlift.model.config.experts_config import read_experts
from chairlift.model.config.layer_groups import AttentionShape
from chairlift.model.config.rope_config import RopeConfig
from chairlift.model.loading.model_building import load_model
from support_architectures import assert_parameters, config_of
from support_batches import teacher_forced_logits
from support_checkpoints import rewrite
from support_models import VARIANTS, save_tiny, tiny_config, tiny_hf_model

CPU = torch.device("cpu")
KINDS = tuple(kind for kind in VARIANTS if kind.startswith("gemma4"))
GEMMA: dict[str, Any] = {
    "architectures": ["Gemma4ForCausalLM"], "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 12,
}  # fmt: skip
SLIDING, FULL = "sliding_attention", "full_attention"


def of(**fields: Any) -> DecoderConfig:
    return parse_decoder_config({**GEMMA, **fields})


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_those_of_transformers(kind: str) -> None:
    assert_parameters(kind)


@pytest.mark.parametrize(
    "fields",
    [
        {"hidden_size": 64, "num_hidden_layers": 7},
        {"num_hidden_layers": 12, "attention_k_eq_v": True, "num_global_key_value_heads": 2, "global_head_dim": 128},
        {"num_global_key_value_heads": 2, "num_kv_shared_layers": 12, "use_double_wide_mlp": True},
        {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 32},
        {"global_head_dim": 256},
    ],
)
def test_what_config_json_leaves_out_is_what_transformers_takes(fields: dict[str, Any]) -> None:
    theirs = transformers.Gemma4TextConfig(**fields)
    ours = parse_decoder_config({**fields, "architectures": ["Gemma4ForCausalLM"]})
    saved = {**json.loads(theirs.to_json_string()), "architectures": ["Gemma4ForCausalLM"]}
    assert "per_layer_config" in saved and "global_head_dim" not in saved
    assert parse_decoder_config(saved) == ours
    assert (ours.norm_eps, ours.tie_word_embeddings) == (theirs.rms_norm_eps, theirs.tie_word_embeddings)
    assert (ours.eos_token_ids, ours.bos_token_id) == ((theirs.eos_token_id,), theirs.bos_token_id)
    for layer, their_layer in enumerate(theirs.per_layer_config):
        shape = AttentionShape(their_layer.num_key_value_heads, their_layer.head_dim)
        assert ours.attention_shape_of(layer) == shape
    sharing = theirs.kv_sharing_modes
    assert [ours.has_own_kv(layer) for layer in range(ours.num_layers)] == [mode != "reuse" for mode in sharing]


def test_five_of_six_layers_slide_and_the_last_is_full() -> None:
    assert of().layer_windows == ((512,) * 5 + (None,)) * 2
    assert of(num_hidden_layers=8).layer_windows == (512,) * 5 + (None, 512, None)
    assert of(num_hidden_layers=3, layer_types=[SLIDING] * 3, sliding_window=9).layer_windows == (9, 9, None)


def test_full_layers_have_heads_of_their_own() -> None:
    sliding, full = AttentionShape(4, 256), AttentionShape(4, 512)
    assert of().layer_shapes == ((sliding,) * 5 + (full,)) * 2
    assert (of().num_kv_heads, of().head_dim) == (4, 256)
    of_31b = of(attention_k_eq_v=True, num_global_key_value_heads=2)
    assert of_31b.layer_shapes == ((sliding,) * 5 + (AttentionShape(2, 512),)) * 2
    assert of_31b.value_is_key == (5, 11)
    assert of(num_global_key_value_heads=2).layer_shapes == of().layer_shapes, "only where values are keys"
    assert of(global_head_dim=256).layer_shapes == ()
    all_full = of(layer_types=[FULL] * 12)
    assert (all_full.layer_shapes, all_full.head_dim) == ((), 512)


def test_the_last_layers_read_keys_and_values_of_earlier_ones() -> None:
    config = of(num_kv_shared_layers=6, use_double_wide_mlp=True, attention_k_eq_v=True)
    assert config.kv_sources == (None,) * 6 + (4,) * 5 + (5,)
    assert config.mlp_sizes == (96,) * 6 + (192,) * 6 and config.mlp_width == 192
    assert config.value_is_key == (5,)
    assert of(use_double_wide_mlp=True).mlp_sizes == () and of().kv_sources == ()


def test_only_a_part_of_the_angles_of_full_layers_rotates() -> None:
    assert of().rope == RopeConfig(type="proportional", theta=1e6, rotated_share=0.25)
    assert of().sliding_rope == RopeConfig(theta=1e4)
    assert of().attention_scale == 1.0 and of().has_value_norm
    plain = {"rope_type": "default", "rope_theta": 5e3}
    found = of(num_hidden_layers=2, layer_types=[FULL] * 2, rope_parameters={FULL: plain})
    assert found.rope == found.sliding_rope == RopeConfig(theta=5e3)


def test_inputs_of_layers_and_experts() -> None:
    assert of().per_layer_inputs == PerLayerInputConfig(size=256, vocab_size=262144)
    assert of().inputs_width == 12 * 256 and of(hidden_size_per_layer_input=0).inputs_width == 0
    assert of(hidden_size_per_layer_input=0).per_layer_inputs is None
    assert of().experts is None and of().expert_norms is None
    both = of(enable_moe_block=True, num_experts=8, top_k_experts=2, moe_intermediate_size=32)
    assert both.experts is not None and both.experts.router.norm_eps == 1e-6 and both.expert_norms is not None
    assert both.mlp_width == 96, "the MLP beside two experts of 32"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention 'all' is not supported"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention must be all, vision or null, got True"),
        ({"layer_types": [FULL] * 3}, "layer_types has 3 entries, num_hidden_layers is 12"),
        ({"layer_types": ["chunked_attention"] * 12}, "chunked_attention"),
        ({"num_kv_shared_layers": 12}, "num_kv_shared_layers is 12, but no layer before them has sliding_attention"),
        ({"num_kv_shared_layers": 7}, "num_kv_shared_layers is 7, but no layer before them has full_attention"),
        ({"num_kv_shared_layers": -1}, "num_kv_shared_layers must be between 0 and"),
        ({"global_head_dim": 33}, "head_dim must be even for RoPE, got 33"),
        ({"attention_k_eq_v": True, "num_global_key_value_heads": 3}, "8 query heads cannot share 3 key/value heads"),
        ({"attention_k_eq_v": "yes"}, "attention_k_eq_v must be true or false"),
        ({"vocab_size_per_layer_input": 7}, "vocab_size_per_layer_input is 7, but there are 262144 tokens"),
        ({"rope_parameters": {FULL: {"rope_theta": 1e4}}}, "rope_parameters has no sliding_attention"),
        ({"rope_parameters": {"rope_theta": 1e4}}, "rope_parameters has no sliding_attention"),
        ({"enable_moe_block": True}, "num_experts is missing"),
        ({"enable_moe_block": True, "num_experts": 0}, "num_experts must be at least 1 with enable_moe_block"),
        ({"per_layer_config": {"12": {"head_dim": 8}}}, "per_layer_config has layer '12', but there are 12 layers"),
        ({"per_layer_config": {"x": {"head_dim": 8}}}, "per_layer_config has layer 'x'"),
        ({"per_layer_config": {"0": 8}}, "per_layer_config must have an object for layer 0"),
        ({"per_layer_config": {"0": {"head_dim": 0}}}, "head_dim must be between 1 and"),
        (
            {"num_kv_shared_layers": 6, "per_layer_config": {"11": {"head_dim": 64}}},
            "layer 11 reads the keys of layer 5, which has other heads",
        ),
        ({"hidden_activation": "swish2"}, "hidden_activation 'swish2' is not supported"),
    ],
)
def test_what_does_not_fit_is_one_sentence(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as found:
        of(**fields)
    assert "\n" not in found.value.message


@pytest.mark.parametrize(
    "fields",
    [
        {"per_layer_config": {"0": {"sliding_window": 8}}},
        {"hidden_activation": "relu2"},
        {"rope_parameters": {FULL: {"rope_theta": 1e4, "partial_rotary_factor": 0.5}, SLIDING: {"rope_theta": 1e4}}},
    ],
)
def test_what_only_transformers_has_is_left_to_it(fields: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedArchitecture):
        of(**fields)


def test_keys_and_values_of_layers_that_read_others_are_left_out(tmp_path: Path) -> None:
    config = config_of("gemma4")
    assert [unused_of_readers(config, f"model.layers.{layer}.self_attn.k_proj.weight") for layer in (2, 3, 5, 6)] == [
        False, True, True, False,
    ]  # fmt: skip
    assert not unused_of_readers(config, "model.layers.3.self_attn.q_proj.weight")
    assert not unused_of_readers(config, "model.layers.x.self_attn.k_proj.weight")
    folder = save_tiny("gemma4", tmp_path, seed=5)
    expected = tokens_logits(folder)

    def add(tensors: dict[str, torch.Tensor]) -> None:
        for name in ("k_proj", "v_proj", "k_norm"):
            tensors[f"model.layers.4.self_attn.{name}.weight"] = torch.ones(3)

    rewrite(folder, add)
    assert torch.equal(tokens_logits(folder), expected)


def tokens_logits(folder: Path) -> torch.Tensor:
    model, _ = load_model(folder, dtype="float64", device=CPU, max_model_len=None)
    tokens = [(31 * place) % 300 for place in range(50)]
    found: torch.Tensor = teacher_forced_logits(model, [tokens], torch.float64, max_chunk=30)[0]
    return found


def wrapper(folder: Path) -> transformers.PreTrainedModel:
    """Save a Gemma4ForConditionalGeneration around the text weights of the tiny Gemma; returns it in float64."""
    vision = transformers.Gemma4VisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        head_dim=8, position_embedding_size=16,
    )  # fmt: skip
    ids = {f"{name}_token_id": 300 for name in ("boi", "eoi", "image", "video", "boa", "audio")}
    config = transformers.Gemma4Config(
        text_config=tiny_config("gemma4").to_dict(), vision_config=vision.to_dict(), eoa_token_index=300, **ids
    )
    model = transformers.Gemma4ForConditionalGeneration(config)
    inner = tiny_hf_model("gemma4", 5, torch.float32)
    model.model.language_model.load_state_dict(inner.model.state_dict())
    model.tie_weights()
    model.save_pretrained(folder)
    model = model.double().eval()
    model.model.language_model.embed_tokens_per_layer.embed_scale.fill_(8**0.5)  # not rounded to float32
    return model


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_wrapper_computes_what_transformers_computes_on_text(tmp_path: Path, prefix: str) -> None:
    theirs = wrapper(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert any(name.startswith("model.vision_tower.") for name in saved)
    assert any(name.startswith("model.embed_vision.") for name in saved)
    renamed = {name.replace("model.language_model.", prefix): tensor for name, tensor in saved.items()}
    save_file(renamed, tmp_path / "model.safetensors")
    model, config = load_model(tmp_path, dtype="float64", device=CPU, max_model_len=None)
    assert config.architecture == "Gemma4ForConditionalGeneration"
    tokens = [(31 * place) % 300 for place in range(90)]
    with torch.inference_mode():
        expected = theirs(torch.tensor([tokens])).logits[0]
    found = teacher_forced_logits(model, [tokens], torch.float64, max_chunk=30)[0]
    assert (found - expected).abs().max() < 1e-6 * expected.abs().max()


def test_a_model_has_experts_only_where_the_file_says_so() -> None:
    fields = {"num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704, "rms_norm_eps": 1e-5}
    assert read_experts(EXPERTS, ConfigReader(fields, EXPERTS.defaults)) is None
    found = read_experts(EXPERTS, ConfigReader({**fields, "enable_moe_block": True}, EXPERTS.defaults))
    assert found is not None
    assert found.router.norm_eps == 1e-5 and found.router.renormalizes and found.activation == "gelu_pytorch_tanh"
    assert (found.router.num_experts, found.router.experts_per_token, found.intermediate_size) == (128, 8, 704)

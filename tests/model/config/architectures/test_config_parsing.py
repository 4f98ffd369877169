"""DecoderConfig from config.json: both dialects, transformers' own defaults, and errors that name the field."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers

from chairlift.core.errors import ModelError, UnsupportedArchitecture
from chairlift.model.config.architectures.config_parsing import parse_decoder_config, read_decoder_config
from chairlift.model.config.architectures.registry import ARCHITECTURES
from chairlift.model.config.decoder_config import DecoderConfig
from support_models import VARIANTS, tiny_config
from support_shares import for_each

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
GEMMA: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"], "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 7,
}  # fmt: skip


ATTENTION = ("full_attention", "sliding_attention")
"""Kinds of layers with keys and values."""


def of(base: dict[str, Any], architecture: str | None = None, **fields: Any) -> DecoderConfig:
    named = {"architectures": [architecture]} if architecture else {}
    return parse_decoder_config({**base, **named, **fields})


def transformers4(config: Any) -> dict[str, Any]:
    """Write a transformers 5 config as transformers 4 wrote it."""
    content: dict[str, Any] = json.loads(config.to_json_string())
    rope = content.pop("rope_parameters")
    content["torch_dtype"] = content.pop("dtype", None)
    if "full_attention" in rope:
        content["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    content["rope_theta"] = rope.pop("rope_theta")
    content["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    return content


@for_each("kind", VARIANTS)
def test_both_dialects_of_a_config_say_the_same(kind: str) -> None:
    config = tiny_config(kind, architectures=[VARIANTS[kind][1]], dtype="bfloat16")
    new = parse_decoder_config(json.loads(config.to_json_string()))
    assert parse_decoder_config(transformers4(config)) == new
    assert new.dtype == "bfloat16"


@for_each("kind", VARIANTS)
def test_layers_slide_where_transformers_lets_them_slide(kind: str) -> None:
    config = tiny_config(kind, architectures=[VARIANTS[kind][1]])
    ours = parse_decoder_config(json.loads(config.to_json_string()))
    theirs = getattr(config, "layer_types", None)
    if theirs is None:
        window = getattr(config, "sliding_window", None)
        assert ours.layer_windows == (window,) * config.num_hidden_layers
    else:
        assert ours.layer_windows == tuple(
            config.sliding_window if layer == "sliding_attention" else None for layer in theirs if layer in ATTENTION
        )


@pytest.mark.parametrize(
    ("architecture", "config"),
    [
        ("LlamaForCausalLM", "LlamaConfig"),
        ("MistralForCausalLM", "MistralConfig"),
        ("Qwen2ForCausalLM", "Qwen2Config"),
        ("Qwen3ForCausalLM", "Qwen3Config"),
        ("Gemma3ForCausalLM", "Gemma3TextConfig"),
    ],
)
def test_what_config_json_leaves_out_is_what_transformers_takes(architecture: str, config: str) -> None:
    said = {
        "hidden_size": 4096, "intermediate_size": 96, "num_hidden_layers": 30, "vocab_size": 300,
        "num_attention_heads": 32,
    }  # fmt: skip
    theirs = getattr(transformers, config)(**said)
    ours = parse_decoder_config({**said, "architectures": [architecture]})
    assert ours == parse_decoder_config({**json.loads(theirs.to_json_string()), "architectures": [architecture]})
    assert ours.num_kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == getattr(theirs, "head_dim", 4096 // 32)
    assert ours.max_position_embeddings == theirs.max_position_embeddings
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    assert ours.eos_token_ids == (() if theirs.eos_token_id is None else (theirs.eos_token_id,))
    assert ours.bos_token_id == theirs.bos_token_id
    assert ours.norm_eps == theirs.rms_norm_eps


def test_the_wrapper_is_read_through_its_text_config() -> None:
    text = {key: value for key, value in GEMMA.items() if key != "architectures"}
    ours = parse_decoder_config({
        "architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106], "torch_dtype": "bfloat16",
        "text_config": {**text, "eos_token_id": 1, "torch_dtype": None}, "vision_config": {"hidden_size": 1152},
    })  # fmt: skip
    assert (ours.hidden_size, ours.eos_token_ids, ours.dtype) == (64, (1, 106), "bfloat16")
    assert ours.tie_word_embeddings


def test_the_wrapper_decides_the_tie() -> None:
    text = {key: value for key, value in GEMMA.items() if key != "architectures"}
    wrapper = {"architectures": ["Gemma3ForConditionalGeneration"], "tie_word_embeddings": False}
    assert not parse_decoder_config(
        {**wrapper, "text_config": {**text, "tie_word_embeddings": True}}
    ).tie_word_embeddings


def test_biases_are_where_each_architecture_has_them() -> None:
    def biases(architecture: str, **fields: Any) -> tuple[bool, bool, bool]:
        config = of(LLAMA, architecture, **fields)
        return config.qkv_bias, config.output_bias, config.mlp_bias

    assert biases("LlamaForCausalLM") == (False, False, False)
    assert biases("LlamaForCausalLM", attention_bias=True, mlp_bias=True) == (True, True, True)
    assert biases("Qwen2ForCausalLM") == (True, False, False)
    assert biases("MistralForCausalLM", attention_bias=True, mlp_bias=True) == (False, False, False)
    assert biases("Qwen3ForCausalLM", attention_bias=True) == (True, True, False)


@for_each(
    ("fields", "said"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": 0}, "hidden_size must be between 1 and"),
        ({"hidden_size": "64"}, "hidden_size must be an integer, got '64'"),
        ({"hidden_size": True}, "hidden_size must be an integer"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers must be an integer"),
        ({"num_key_value_heads": 3}, "4 query heads cannot share 3 key/value heads"),
        ({"head_dim": 7}, "head_dim must be even for RoPE, got 7"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a finite number above 0"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps must be a finite number above 0"),
        ({"hidden_act": "mish"}, "hidden_act 'mish' is not supported"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"eos_token_id": [1, -2]}, "eos_token_id must be between 0 and"),
        ({"eos_token_id": "</s>"}, "eos_token_id must be an integer"),
        ({"torch_dtype": "float8_e4m3fn"}, "dtype 'float8_e4m3fn' is not supported"),
        ({"rope_theta": 0}, "rope_theta must be a finite number above 0"),
        ({"rope_scaling": [1]}, "rope_scaling must be an object"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_type 'longrope' is not supported"),
        (
            {"rope_scaling": {"rope_type": "su", "short_factor": [1], "long_factor": [1], "attention_factor": 1.0}},
            "RoPE has 1 factors for 8 frequencies",
        ),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor is missing"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is not supported"),
        ({"quantization_config": {"quant_method": "quark"}}, "which is not supported"),
        ({"text_config": 7}, "text_config must be an object"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        of(LLAMA, **fields)


@for_each(
    ("architecture", "fields", "said"),
    [
        ("Qwen2ForCausalLM", {"layer_types": ["full_attention"]}, "layer_types has 1 entries, num_hidden_layers is 4"),
        ("Qwen2ForCausalLM", {"layer_types": ["chunked_attention"] * 4}, "chunked_attention"),
        ("Qwen2ForCausalLM", {"layer_types": ["sliding_attention"] * 4}, "sliding_window is missing"),
        ("Qwen2ForCausalLM", {"layer_types": "sliding_attention"}, "must be a list of strings"),
        ("MistralForCausalLM", {"layer_types": ["full_attention"] * 4}, "contradict sliding_window 4096"),
        ("Gemma3ForCausalLM", {"sliding_window": None}, "sliding_window is missing"),
        ("Gemma3ForCausalLM", {"use_bidirectional_attention": True}, "use_bidirectional_attention is not supported"),
        ("Gemma3ForCausalLM", {"rope_parameters": {"rope_type": "default"}}, "full_attention and sliding_attention"),
        ("LlamaForCausalLM", {"rope_parameters": {"full_attention": {}}}, "for each layer type are not supported"),
    ],
)
def test_contradictions_are_named(architecture: str, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        of(LLAMA, architecture, **fields)


@pytest.mark.parametrize("names", [None, [], ["FooForCausalLM"], "LlamaForCausalLM", [7]])
def test_an_unsupported_architecture_ends_with_the_supported_ones(names: Any) -> None:
    with pytest.raises(UnsupportedArchitecture) as caught:
        parse_decoder_config({**LLAMA, "architectures": names})
    assert all(name in str(caught.value) for name in ARCHITECTURES)
    if names == ["FooForCausalLM"]:
        assert "FooForCausalLM" in str(caught.value)


def test_eos_may_be_one_or_several_or_none() -> None:
    assert of(LLAMA, eos_token_id=[5, 6, 5]).eos_token_ids == (5, 6)
    assert of(LLAMA, eos_token_id=5).eos_token_ids == (5,)
    assert of(LLAMA, eos_token_id=[1, None]).eos_token_ids == (1,)
    for none in (None, -1, [], [-1], [None]):
        assert of(LLAMA, eos_token_id=none).eos_token_ids == ()
    for none in (None, -1, [], [None]):
        assert of(LLAMA, bos_token_id=none, pad_token_id=none).bos_token_id is None


@pytest.mark.parametrize("none", [None, -1, []])
def test_a_wrapper_without_eos_leaves_that_of_its_text_config(none: Any) -> None:
    text = {key: value for key, value in GEMMA.items() if key != "architectures"}
    ours = parse_decoder_config({
        "architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": none, "bos_token_id": none,
        "text_config": {**text, "eos_token_id": 106, "bos_token_id": 2}, "vision_config": {"hidden_size": 1152},
    })  # fmt: skip
    assert (ours.eos_token_ids, ours.bos_token_id) == ((106,), 2)


@pytest.mark.parametrize("content", ["", "{", "[]", "\ud800", "[" * 100_000, '{"architectures": ["LlamaForCausalLM"]'])
def test_an_unreadable_config_ends_with_its_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(ModelError, match=r"config\.json"):
        read_decoder_config(tmp_path)


def test_a_missing_config_ends_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no file config\.json in "):
        read_decoder_config(tmp_path)


def test_reading_a_config_imports_no_torch() -> None:
    config = ", ".join(f"chairlift.model.config.{name}" for name in ("model_config", "hub", "generation_config"))
    modules = f"{config}, chairlift.model.config.runner_config"
    code = f"import sys; sys.modules['torch'] = None; sys.modules['huggingface_hub'] = None; import {modules}"
    subprocess.run([sys.executable, "-c", code], check=True)

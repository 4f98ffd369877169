"""TransformersConfig: sizes under any architecture's names, defaults of transformers, and refusals that say why."""

import json
import subprocess
import sys
from typing import Any

import pytest
import transformers

from chairlift.core.errors import ConfigError, ModelError, UnsupportedArchitecture, UnsupportedModel
from chairlift.model.config.transformers_config import TransformersConfig, parse_transformers_config
from support_bridged_models import BRIDGED, WINDOW, bridged_model
from support_models import LONGROPE
from support_shares import for_each

FOO: dict[str, Any] = {
    "architectures": ["FooForCausalLM"], "model_type": "foo", "vocab_size": 300, "hidden_size": 64,
    "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}  # fmt: skip


def of(**fields: Any) -> TransformersConfig:
    return parse_transformers_config({**FOO, **fields})


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in FOO.items() if name not in names}


def refusal(**fields: Any) -> str:
    with pytest.raises(UnsupportedArchitecture) as caught:
        of(**fields)
    assert caught.value.details["remedy"]
    return caught.value.message


@pytest.mark.share(8)
@pytest.mark.parametrize("kind", BRIDGED)
def test_sizes_of_a_saved_config_are_those_of_transformers(kind: str) -> None:
    config = bridged_model(kind).config
    config.architectures = ["AnyForCausalLM"]
    ours = parse_transformers_config(json.loads(config.to_json_string(use_diff=False)))
    assert ours == parse_transformers_config(
        json.loads(config.to_json_string()) | {"architectures": ["AnyForCausalLM"]}
    )
    assert (ours.vocab_size, ours.hidden_size, ours.num_heads) == (304, 64, 4)
    assert ours.num_layers == config.num_hidden_layers == len(ours.layer_windows)
    assert ours.eos_token_ids == (2,) and ours.bos_token_id == 1
    assert (WINDOW in ours.layer_windows) == (BRIDGED[kind].window is not None)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"n_embd": 32, "n_layer": 2, "n_head": 8, "n_positions": 99, "n_inner": 50}, (32, 2, 8, 8, 99, 50)),
        ({"d_model": 32, "n_layers": 2, "n_heads": 8, "max_seq_len": 99, "d_ff": 50}, (32, 2, 8, 8, 99, 50)),
        ({"hidden_size": 32, "num_layers": 2, "num_heads": 8, "n_ctx": 99, "ffn_dim": 50}, (32, 2, 8, 8, 99, 50)),
        ({"hidden_size": 32, "n_layer": 2, "n_head": 8, "num_kv_heads": 1, "seq_length": 9}, (32, 2, 8, 1, 9, 128)),
    ],
)
def test_sizes_have_the_names_of_any_architecture(fields: dict[str, Any], found: tuple[int, ...]) -> None:
    made = parse_transformers_config({"architectures": ["FooLMHeadModel"], "vocab_size": 300, **fields})
    assert (
        made.hidden_size, made.num_layers, made.num_heads, made.num_kv_heads, made.max_position_embeddings,
        made.intermediate_size,
    ) == found  # fmt: skip
    assert made.head_dim == made.hidden_size // made.num_heads


def test_a_missing_size_is_the_default_of_transformers_class() -> None:
    made = parse_transformers_config({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": 2})
    assert (made.num_layers, made.hidden_size, made.num_heads, made.vocab_size) == (2, 768, 12, 50257)
    assert made.max_position_embeddings == 1024 and made.eos_token_ids == (50256,)


def test_the_sizes_of_a_decoder_come_before_those_of_its_encoder() -> None:
    own = {"decoder_layers": 2, "decoder_attention_heads": 8, "decoder_ffn_dim": 50}
    made = of(**own, encoder_layers=5, is_encoder_decoder=False)
    assert (made.num_layers, made.num_heads, made.intermediate_size) == (2, 8, 50)


def test_a_size_under_a_name_of_its_class_is_not_a_default() -> None:
    content = {"architectures": ["CTRLLMHeadModel"], "model_type": "ctrl", "vocab_size": 300, "dff": 50, "n_layer": 2}
    made = parse_transformers_config(content | {"n_embd": 64, "n_head": 4, "n_positions": 99})
    assert (made.num_layers, made.hidden_size, made.max_position_embeddings) == (2, 64, 99)
    neo = {"architectures": ["XGLMForCausalLM"], "model_type": "xglm", "vocab_size": 300, "attention_heads": 4}
    assert parse_transformers_config(neo | {"d_model": 64}).num_heads == 4


def test_a_size_that_no_class_knows_is_named() -> None:
    with pytest.raises(ModelError, match=r"config\.json: vocab_size is missing"):
        parse_transformers_config(without("vocab_size"))


@pytest.mark.parametrize("value", [None, -1])
def test_positions_without_a_limit_have_a_default_length(value: int | None) -> None:
    assert of(max_position_embeddings=value).context_length() == 2048


def test_the_text_part_of_a_config_counts() -> None:
    made = parse_transformers_config(
        {"architectures": ["FooForCausalLM"], "text_config": without("architectures") | {"hidden_size": 128}}
    )
    assert made.hidden_size == 128 and made.architecture == "FooForCausalLM"


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        ({}, (None, None, None)),
        ({"sliding_window": 7}, (7, 7, 7)),
        ({"sliding_window": 7, "use_sliding_window": False}, (None, None, None)),
        ({"sliding_window": 7, "layer_types": ["sliding_attention", *["full_attention"] * 2]}, (7, None, None)),
    ],
)  # fmt: skip
def test_windows_that_config_seems_to_mean(fields: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    assert of(**fields).layer_windows == windows


def test_the_end_of_sequence_is_one_id_or_several() -> None:
    assert of(eos_token_id=[3, 4, 3]).eos_token_ids == (3, 4)
    assert of(eos_token_id=3).eos_token_ids == (3,)
    assert of().eos_token_ids == () and of().bos_token_id is None


def test_the_dtype_of_both_dialects_and_of_none() -> None:
    assert of(dtype="bfloat16").dtype == of(torch_dtype="bfloat16").dtype == "bfloat16"
    assert of().dtype is None
    with pytest.raises(ModelError, match="dtype 'int4' is not supported"):
        of(dtype="int4")


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
def test_long_rope_is_as_long_as_its_short_factors_unless_more_is_requested(key: str) -> None:
    made = of(**{key: LONGROPE, "original_max_position_embeddings": 100})
    assert made.original_length == 100 and made.context_length() == 100 and made.context_length(300) == 300
    assert of(**{key: LONGROPE | {"original_max_position_embeddings": 64}}).context_length() == 64
    with pytest.raises(ConfigError, match="max_model_len is 513, the model's limit is 512"):
        made.context_length(513)
    assert of(rope_parameters={"rope_type": "yarn"}).original_length is None


def test_long_rope_of_some_layers_counts_for_all() -> None:
    nested = {"full_attention": LONGROPE | {"original_max_position_embeddings": 64}, "sliding_attention": {}}
    assert of(rope_parameters=nested).original_length == 64
    assert of(rope_parameters=nested | {"sliding_attention": LONGROPE}).original_length == 64
    assert of(rope_parameters=nested, original_max_position_embeddings=32).original_length == 32
    assert of(rope_parameters={"full_attention": {"rope_type": "yarn"}}).original_length is None


def test_the_widest_of_several_mlps_counts() -> None:
    assert of(intermediate_size=[96, 128, 64]).intermediate_size == 128
    with pytest.raises(ModelError, match="intermediate_size must be an integer, got 'x'"):
        of(intermediate_size=[96, "x"])


def test_code_in_the_folder_of_a_type_that_transformers_lacks_is_refused() -> None:
    message = refusal(auto_map={"AutoModelForCausalLM": "modeling_foo.FooForCausalLM"})
    assert message == (
        "FooForCausalLM is code in the model folder (auto_map in config.json), and Chairlift runs no code of a model; "
        "use a model whose architecture transformers has"
    )
    assert of(auto_map={"AutoConfig": "configuration_phi3.Phi3Config"}, model_type="phi3").num_layers == 3


def test_a_text_part_that_is_quantized_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"quantized with quark \(quantization_config in config\.json\)"):
        of(text_config={"quantization_config": {"quant_method": "quark"}})


@for_each(
    ("fields", "message"),
    [
        ({"layer_types": ["linear_attention", "full_attention", "conv"]},
         "FooForCausalLM has layers of the kind conv, linear_attention: a state of its own instead of keys and values"),
        ({"layers_block_type": ["mamba", "attention", "mlp"]}, "has layers of the kind mamba: a state of its own"),
        ({"block_types": ["recurrent", "attention"]}, "has layers of the kind recurrent: a state of its own"),
        ({"mamba_d_state": 4}, "has state-space layers (mamba_d_state in config.json): a state of its own"),
        ({"state_size": 4}, "has state-space layers (state_size in config.json): a state of its own"),
        ({"layer_types": ["indexed_attention"] * 3}, "indexed_attention, which select tokens by their content"),
        ({"num_attention_heads": None}, "FooForCausalLM has no attention heads: a state of its own"),
        ({"is_encoder_decoder": True}, "an encoder-decoder; only models that predict the next token are supported"),
        ({"vision_config": {}}, "which also takes images or audio; only models of text are supported"),
        ({"architectures": ["FooDecoder"]},
         "architecture FooDecoder; supported are architectures whose names end in ForCausalLM or LMHeadModel"),
        ({"architectures": ["FooForMaskedLM"]}, "has no language model head; it yields embeddings or classes"),
        ({"architectures": None}, "config.json names no architecture"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_run_is_refused_with_the_reason(fields: dict[str, Any], message: str) -> None:
    assert message in refusal(**fields)


def test_state_fields_of_a_model_whose_layers_all_have_attention_do_not_matter() -> None:
    assert of(layer_types=["attention"] * 3, mamba_d_state=4).num_layers == 3


@for_each(
    ("config", "message"),
    [
        ("JambaConfig", "JambaForCausalLM has state-space layers"), ("MambaConfig", "MambaForCausalLM has state-space"),
        ("Mamba2Config", "has state-space layers"), ("BambaConfig", "has state-space layers"),
        ("FalconH1Config", "has state-space layers"), ("RwkvConfig", "has no attention heads"),
        ("Qwen3NextConfig", "of the kind linear_attention"), ("Lfm2Config", "of the kind conv"),
        ("DeepseekV32Config", "of the kind indexed_attention"), ("T5Config", "an encoder-decoder"),
    ],
)  # fmt: skip
def test_configs_that_transformers_writes_are_refused(config: str, message: str) -> None:
    options = {"layer_types": ["conv"] * 2, "num_hidden_layers": 2} if config == "Lfm2Config" else {}
    made = getattr(transformers, config)(**options)
    name = config.removesuffix("Config")
    made.architectures = [f"{name}ForConditionalGeneration" if name == "T5" else f"{name}ForCausalLM"]
    with pytest.raises(UnsupportedArchitecture) as caught:
        parse_transformers_config(json.loads(made.to_json_string()))
    assert message in caught.value.message


def test_quantized_weights_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="quantized with quip"):
        of(quantization_config={"quant_method": "quip"})


def test_without_transformers_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "pip install 'chairlift[transformers]'" in refusal()


def test_sizes_in_the_file_need_no_import_of_transformers() -> None:
    code = (
        "import sys; from chairlift.model.config.transformers_config import parse_transformers_config as parse; "
        f"parse({FOO!r}); assert 'transformers' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

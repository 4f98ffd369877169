"""TransformersConfig: sizes under any name, defaults of transformers' classes, and models that are refused."""

import json
import subprocess
import sys
from typing import Any

import pytest
import transformers

from chairlift.core.errors import ConfigError, ModelError, UnsupportedArchitecture, UnsupportedModel
from chairlift.model.loading import transformers_config
from chairlift.model.loading.transformers_config import TransformersConfig, parse_transformers_config
from support_bridged_models import BRIDGED, WINDOW

PLAIN: dict[str, Any] = {
    "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "vocab_size": 300, "hidden_size": 64,
    "num_hidden_layers": 4, "num_attention_heads": 4, "max_position_embeddings": 512,
}  # fmt: skip


def of(**fields: Any) -> TransformersConfig:
    content = {**PLAIN, **fields}
    return parse_transformers_config({name: value for name, value in content.items() if value is not None})


@pytest.mark.parametrize("kind", BRIDGED)
def test_sizes_are_those_of_transformers(kind: str) -> None:
    entry = BRIDGED[kind]
    config = getattr(transformers, entry.config)(**entry.fields)
    content = json.loads(config.to_json_string()) | {"architectures": ["XForCausalLM"]}
    found = parse_transformers_config(content)
    assert (found.vocab_size, found.hidden_size, found.num_layers) == (304, 64, config.num_hidden_layers)
    assert found.num_heads == config.num_attention_heads and found.eos_token_ids == (2,)
    if entry.window:
        assert WINDOW in found.layer_windows


def test_missing_sizes_have_the_defaults_of_the_class() -> None:
    found = parse_transformers_config({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"})
    assert (found.vocab_size, found.hidden_size, found.num_layers, found.num_heads) == (50257, 768, 12, 12)
    assert (found.max_position_embeddings, found.intermediate_size, found.head_dim) == (1024, 4 * 768, 64)
    assert of(max_position_embeddings=None, model_type="nothing").max_position_embeddings == 2048


def test_fields_and_their_defaults() -> None:
    found = of(eos_token_id=[3, 5], bos_token_id=1, torch_dtype="bfloat16", num_key_value_heads=2)
    assert (found.eos_token_ids, found.bos_token_id, found.dtype, found.num_kv_heads) == ((3, 5), 1, "bfloat16", 2)
    assert (of().num_kv_heads, of().head_dim, of().intermediate_size, of().dtype) == (4, 16, 256, None)
    assert of(sliding_window=9).layer_windows == (9,) * 4 and of().layer_windows == (None,) * 4
    assert of(sliding_window=9, use_sliding_window=False).layer_windows == (None,) * 4
    kinds = ["sliding_attention", "full_attention"] * 2
    assert of(sliding_window=9, layer_types=kinds).layer_windows == (9, None, 9, None)


@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
def test_the_original_length_of_long_rope_is_the_default_length(place: str) -> None:
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 100}
    for fields in ({place: rope}, {place: {"rope_type": "longrope"}, "original_max_position_embeddings": 100}):
        found = of(**fields)
        assert (found.original_length, found.context_length(), found.context_length(400)) == (100, 100, 400)
        with pytest.raises(ConfigError, match="the model's limit is 512"):
            found.context_length(513)
    assert of(rope_parameters={"rope_type": "yarn"}).context_length() == 512


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"layer_types": ["full_attention", "linear_attention"]}, "layers of the kind linear_attention: a state"),
        ({"layers_block_type": ["attention", "mamba"]}, "layers of the kind mamba"),
        ({"num_attention_heads": None, "model_type": "mamba2"}, "has no attention heads: a state"),
        ({"is_encoder_decoder": True}, "an encoder-decoder"),
        ({"vision_config": {}}, "also takes images or audio"),
        ({"architectures": ["BertForMaskedLM"]}, "has no language model head"),
        ({"architectures": []}, "names no architecture"),
    ],
)
def test_models_that_are_no_decoders_with_attention_are_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedArchitecture, match=reason) as raised:
        of(**fields)
    assert raised.value.details["remedy"]


def test_quantized_checkpoints_and_wrong_numbers_are_errors() -> None:
    with pytest.raises(UnsupportedModel, match="AWQ"):
        of(quantization_config={"quant_method": "awq"})
    with pytest.raises(ModelError, match="hidden_size"):
        of(hidden_size=-1)
    with pytest.raises(ModelError, match="dtype 'int4'"):
        of(dtype="int4")


def test_without_transformers_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers_config, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedArchitecture, match=r"pip install 'chairlift\[transformers\]'"):
        of()


def test_a_complete_file_is_read_without_torch_and_transformers() -> None:
    code = (
        "import json, sys; from chairlift.model.loading.transformers_config import parse_transformers_config as parse; "
        f"parse(json.loads({json.dumps(json.dumps(PLAIN))})); assert not {{'torch', 'transformers'}} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

"""config_fields: the config.json of a GGUF file gives the DecoderConfig of the original model, or one error."""

import json
import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.auto.configuration_auto import AutoConfig
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from chairlift.core.errors import ModelError, UnsupportedArchitecture, UnsupportedModel
from chairlift.model.config.architectures.config_parsing import parse_decoder_config
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.config.gguf_architectures import gguf_architecture
from chairlift.model.config.gguf_config import config_fields
from chairlift.model.config.gguf_tensor_names import canonical_tensor_names, norm_offset, row_order
from chairlift.model.layers.rope import inverse_frequencies
from support_gguf_config import converted_metadata, converted_names, smollm2
from support_models import VARIANTS, tiny_config, tiny_hf_model
from support_shares import for_each

NAME = "a.gguf"
ROUNDING = 2**-24
"""Largest relative error of one rounding to float32."""

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
GEMMA = {"num_hidden_layers": 7, "layer_types": None, "query_pre_attn_scalar": 32, "head_dim": 32}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "tied, many heads": ("llama", {"tie_word_embeddings": True, "num_attention_heads": 8, "num_key_value_heads": 8}),
    "head_dim": ("llama", {"head_dim": 24, "rms_norm_eps": 1e-5, "rope_parameters": {
        "rope_type": "default", "rope_theta": 500000.0}}),
    "two end tokens": ("llama", {"eos_token_id": [7, 9], "bos_token_id": None}),
    "no end token": ("llama", {"eos_token_id": None}),
    "linear": ("llama-linear", {}),
    "yarn": ("llama-yarn", {}),
    "yarn with all": ("llama-yarn", {"rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32,
        "attention_factor": 1.1, "beta_fast": 16.0, "beta_slow": 2.0}}),
    "biases": ("llama-bias", {}),
    "mistral": ("mistral-full", {}),
    "qwen2": ("qwen2", {}),
    "qwen2 yarn": ("qwen2", {"tie_word_embeddings": False, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768}}),
    "qwen3": ("qwen3", {}),
    "qwen3 biases": ("qwen3", {"attention_bias": True}),
    "gemma3": ("gemma3", GEMMA),
    "gemma3 one layer": ("gemma3", {**GEMMA, "num_hidden_layers": 1}),
    "gemma3 linear, softcap": ("gemma3-softcap", {**GEMMA, "query_pre_attn_scalar": 16, "head_dim": 16}),
    "gemma3 27b": ("gemma3", {**GEMMA, "num_hidden_layers": 62, "query_pre_attn_scalar": 16, "hidden_size": 64}),
}  # fmt: skip


def original(case: str) -> Any:
    kind, changes = CASES[case]
    return tiny_config(kind, architectures=[VARIANTS[kind][1]], dtype="bfloat16", **changes)


def shapes_of(config: Any) -> dict[str, tuple[int, ...]]:
    """Return the tensors that decide a field."""
    layers, vocab, hidden = config.num_hidden_layers, config.vocab_size, config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {f"blk.{layer}.attn_norm.weight": (hidden,) for layer in range(layers)}
    shapes |= {"token_embd.weight": (vocab, hidden)}
    if not config.tie_word_embeddings:
        shapes["output.weight"] = (vocab, hidden)
    is_qwen2 = config.architectures == ["Qwen2ForCausalLM"]
    if is_qwen2 or getattr(config, "attention_bias", False):
        shapes |= {f"blk.0.attn_{each}.bias": (hidden,) for each in ("q", "k", "v", *(() if is_qwen2 else ("output",)))}
    if getattr(config, "mlp_bias", False):
        shapes |= {f"blk.0.ffn_{each}.bias": (hidden,) for each in ("gate", "up", "down")}
    return shapes


def llama_metadata(**changes: Any) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """Return metadata and shapes of a llama; `changes` are keys with "__" for "."."""
    return with_changes("llama", changes)


def with_changes(case: str, changes: dict[str, Any]) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    config = original(case)
    metadata = converted_metadata(config)
    prefix = metadata["general.architecture"]
    return metadata | {f"{prefix}.{key.replace('__', '.')}": each for key, each in changes.items()}, shapes_of(config)


@for_each("case", CASES)
def test_the_config_is_that_of_the_original_model(case: str) -> None:
    config = original(case)
    fields = config_fields(converted_metadata(config), shapes_of(config), NAME)
    expected = parse_decoder_config(json.loads(config.to_json_string()))
    found = parse_decoder_config(json.loads(json.dumps(fields)))
    if expected.architecture == "MistralForCausalLM":
        expected = parse_decoder_config(json.loads(config.to_json_string()) | {"architectures": ["LlamaForCausalLM"]})
    assert found == expected


@for_each("case", CASES)
def test_transformers_reads_the_fields_as_it_reads_the_original_config(case: str) -> None:
    config = original(case)
    fields = config_fields(converted_metadata(config), shapes_of(config), NAME)
    found = AutoConfig.for_model(**fields).to_dict()
    expected = config.to_dict()
    assert AutoConfig.for_model(**fields).architectures == fields["architectures"]
    for name in fields:
        if name in expected and name not in ("architectures", "model_type", "sliding_window", "rope_scaling"):
            assert found[name] == expected[name], name
    rope, ours = expected["rope_parameters"], found["rope_parameters"]
    defaults = {"beta_fast": 32.0, "beta_slow": 1.0} if rope.get("rope_type") == "yarn" else {}
    assert ours == defaults | rope


def test_transformers_builds_the_model_of_the_fields() -> None:
    config = original("gemma3 linear, softcap")
    fields = config_fields(converted_metadata(config), shapes_of(config), NAME)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields))
    assert type(model).__name__ == "Gemma3ForCausalLM"
    assert {name for name, _ in model.named_parameters() if name.endswith("layers.0.self_attn.q_proj.bias")}


def test_a_real_file_is_smollm2() -> None:
    reader = smollm2()
    metadata = {key: field.contents() for key, field in reader.fields.items()}
    shapes = {tensor.name: tuple(int(size) for size in reversed(tensor.shape)) for tensor in reader.tensors}
    types = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    config = parse_decoder_config(config_fields(metadata, shapes, "smollm2.gguf", tensor_types=types))
    expected = DecoderConfig(
        architecture="LlamaForCausalLM", vocab_size=49152, hidden_size=576, intermediate_size=1536, num_layers=30,
        num_heads=9, num_kv_heads=3, head_dim=64, max_position_embeddings=8192, layer_windows=(None,) * 30,
        eos_token_ids=(2,), bos_token_id=1, dtype="bfloat16", norm_eps=1e-5, activation="silu", rope=config.rope,
        sliding_rope=config.rope, tie_word_embeddings=True, attention_scale=0.125,
    )  # fmt: skip
    assert config == expected
    assert (config.rope.type, config.rope.theta) == ("default", 100000.0)


def llama3_divisors(rope: dict[str, Any], head_dim: int) -> list[float]:
    """Return the converter's tensor: how much longer Llama 3 makes each wavelength; in float64, rounded to float32."""
    divisors = []
    for index in range(head_dim // 2):
        turns = rope["original_max_position_embeddings"] * rope["rope_theta"] ** (-2 * index / head_dim) / (2 * math.pi)
        share = (turns - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
        share = min(max(share, 0.0), 1.0)
        divisors.append(1 / ((1 - share) / rope["factor"] + share))
    return [float(each) for each in torch.tensor(divisors, dtype=torch.float32)]


@pytest.mark.parametrize("head_dim", [32, 64, 128])
@pytest.mark.parametrize("rope", [LLAMA3, {**LLAMA3, "factor": 8.0}], ids=["3.2", "3.1"])
def test_divisors_rotate_as_llama3(rope: dict[str, Any], head_dim: int) -> None:
    config = tiny_config(
        "llama", architectures=["LlamaForCausalLM"], head_dim=head_dim, max_position_embeddings=131072,
        rope_parameters=dict(rope),
    )  # fmt: skip
    shapes = shapes_of(config) | {"rope_freqs.weight": (head_dim // 2,)}
    divisors = llama3_divisors(rope, head_dim)
    assert divisors[0] == 1.0
    assert divisors[-1] == rope["factor"]
    found = parse_decoder_config(
        config_fields(converted_metadata(config), shapes, NAME, rope_values={"rope_freqs.weight": divisors})
    )
    expected = parse_decoder_config(json.loads(config.to_json_string()))
    assert found.max_context == found.context_length() == 131072
    theirs, one = inverse_frequencies(expected.rope, head_dim)
    ours, scaling = inverse_frequencies(found.rope, head_dim)
    assert scaling == one == 1.0
    plain = [rope["rope_theta"] ** (-2 * index / head_dim) for index in range(head_dim // 2)]
    exact = torch.tensor(plain, dtype=torch.float64) / torch.tensor(divisors, dtype=torch.float64)
    assert torch.allclose(ours.double(), exact, rtol=3 * ROUNDING, atol=0)
    assert torch.allclose(ours, theirs, rtol=8 * ROUNDING, atol=0)  # their formula alone is off by up to 7
    unscaled = torch.tensor(divisors) == 1
    assert torch.equal(ours[unscaled], theirs[unscaled])


@pytest.mark.parametrize(
    ("divisors", "text"),
    [
        ([1.0] * 7, "a.gguf: tensor rope_freqs.weight has 7 values for 8 frequencies"),
        ([1.0] * 7 + [0.0], "a.gguf: tensor rope_freqs.weight must have finite numbers above 0, got 0.0"),
        ([1.0] * 7 + [math.nan], "a.gguf: tensor rope_freqs.weight must have finite numbers above 0, got nan"),
        ([math.inf] * 8, "a.gguf: tensor rope_freqs.weight must have finite numbers above 0, got inf"),
    ],
)
def test_wrong_divisors_are_an_error(divisors: list[float], text: str) -> None:
    metadata, shapes = llama_metadata()
    with pytest.raises(ModelError) as raised:
        config_fields(metadata, shapes | {"rope_freqs.weight": (8,)}, NAME, rope_values={"rope_freqs.weight": divisors})
    assert str(raised.value) == text


def test_divisors_without_a_tensor_are_not_used() -> None:
    metadata, shapes = llama_metadata()
    assert config_fields(metadata, shapes, NAME, rope_values={"rope_freqs.weight": [2.0]})["rope_scaling"] is None


def converted_tensors(model: Any, name: str) -> dict[str, torch.Tensor]:
    """Return the tensors of the file: llama's queries and keys in pairs of rows, Gemma's norms with 1 added."""
    config, tensors = model.config, dict(model.named_parameters())
    stored = {}
    for parameter, in_file in converted_names(list(tensors), name, config.num_hidden_layers).items():
        tensor = tensors[parameter].detach()
        for projection, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if name == "llama" and projection in parameter:
                halves = tensor.unflatten(0, (heads, 2, -1))
                tensor = halves.transpose(1, 2).reshape(tensor.shape)
        stored[in_file] = tensor + 1 if name == "gemma3" and in_file.endswith("norm.weight") else tensor
    return stored


@for_each("case", ["llama", "biases", "linear", "mistral", "qwen2 yarn", "qwen3", "gemma3 linear, softcap", "llama3"])
def test_a_converted_model_computes_the_logits_of_the_original(case: str) -> None:
    kind, changes = CASES.get(case, ("llama-llama3", {}))
    original_model = tiny_hf_model(kind, architectures=[VARIANTS[kind][1]], **changes)
    metadata, divisors = converted_metadata(original_model.config), list[float]()
    stored = converted_tensors(original_model, metadata["general.architecture"])
    if case == "llama3":
        divisors = llama3_divisors(original_model.config.rope_parameters, original_model.config.head_dim)
        stored["rope_freqs.weight"] = torch.tensor(divisors)
    shapes = {name: tuple(tensor.shape) for name, tensor in stored.items()}
    fields = config_fields(metadata, shapes, NAME, rope_values={"rope_freqs.weight": divisors})
    architecture = gguf_architecture(metadata, NAME)
    weights = {}
    for name, in_file in canonical_tensor_names(stored, architecture, NAME).items():
        tensor = stored[in_file] - norm_offset(name, architecture)
        heads, kv_heads = fields["num_attention_heads"], fields["num_key_value_heads"]
        order = row_order(name, architecture, len(tensor), heads, kv_heads)
        weights[name] = tensor if order is None else tensor[order]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields), dtype=torch.float64).eval()
    assert not model.load_state_dict(weights, strict=False).unexpected_keys
    model.tie_weights()
    tokens = torch.arange(3, 60)[None]
    with torch.no_grad():
        found, expected = model(tokens).logits, original_model(tokens).logits
    assert torch.allclose(found, expected, rtol=0, atol=1e-4 if case == "llama3" else 1e-9)


UNSUPPORTED: list[tuple[str, dict[str, Any], str]] = [
    ("qwen2", {"expert_count": 8}, "qwen2.expert_count is 8, so the model is a mixture of experts"),
    ("llama", {"expert_count": 8}, "llama.expert_count is 8 in a file without tensors of all experts"),
    ("llama", {"attention__causal": False}, "llama.attention.causal is false, so tokens attend to later ones"),
    ("llama", {"attention__head_count": [4, 4, 2]}, "llama.attention.head_count differs between layers ([2, 4])"),
    ("llama", {"feed_forward_length": [96, 0, 96]}, "llama.feed_forward_length differs between layers ([0, 96])"),
    ("head_dim", {"attention__value_length": 16},
     "llama.attention.key_length is 24 and differs from that of values, 16"),
    ("llama", {"rope__dimension_count": 8}, "llama.rope.dimension_count is 8 of 16 dimensions of a head"),
    ("llama", {"rope__scaling__type": "longrope"}, "llama.rope.scaling.type is 'longrope', not none, linear or yarn"),
    ("llama", {"rope__scaling__alpha": 1000.0}, "llama.rope.scaling.alpha is 1000.0"),
    ("linear", {"rope__scaling__attn_factor": 1.5}, "llama.rope.scaling.attn_factor is 1.5 for the type linear"),
    ("yarn", {"rope__scaling__yarn_ext_factor": 0.0}, "llama.rope.scaling.yarn_ext_factor is 0.0, not 1"),
    ("yarn", {"rope__scaling__attn_factor": 2.0, "rope__scaling__yarn_log_multiplier": 1.0},
     "llama.rope.scaling.attn_factor is 2.0 beside yarn_log_multiplier"),
    ("qwen2", {"attention__sliding_window": 20},
     "qwen2.attention.sliding_window is 20 in an architecture without windows"),
    ("llama", {"attention__scale": 0.5}, "llama.attention.scale is 0.5, not 0.25"),
    ("gemma3", {"attention__scale": 1e-30}, "gemma3.attention.scale is 1e-30, not 0.176777"),
    ("gemma3", {"attention__scale": 2.0}, "gemma3.attention.scale is 2.0, not 1"),
    ("qwen3", {"final_logit_softcapping": 30.0},
     "qwen3.final_logit_softcapping is 30.0 in an architecture without a cap"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "changes", "text"), UNSUPPORTED, ids=[text for _, _, text in UNSUPPORTED])
def test_what_is_not_supported_is_named_with_a_remedy(case: str, changes: dict[str, Any], text: str) -> None:
    metadata, shapes = with_changes(case, changes)
    with pytest.raises(UnsupportedModel) as raised:
        config_fields(metadata, shapes, NAME)
    assert str(raised.value).startswith(
        f"a.gguf: {text}, which is not supported; use the original model in safetensors"
    )


def test_another_architecture_is_refused() -> None:
    metadata, shapes = llama_metadata()
    with pytest.raises(UnsupportedArchitecture, match=r"^a\.gguf has architecture 'deepseek2'"):
        config_fields(metadata | {"general.architecture": "deepseek2"}, shapes, NAME)


def test_divisors_beside_a_scaling_are_not_supported() -> None:
    metadata, shapes = with_changes("yarn", {})
    with pytest.raises(UnsupportedModel, match=r"is yarn beside tensor rope_freqs\.weight"):
        config_fields(
            metadata, shapes | {"rope_freqs.weight": (8,)}, NAME, rope_values={"rope_freqs.weight": [1.0] * 8}
        )


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"block_count": 4}, "llama.block_count is 4, but the file has no tensor blk.3.attn_norm.weight"),
    ({"block_count": 2**31 - 1},
     "llama.block_count is 2147483647, but the file has no tensor blk.2147483646.attn_norm.weight"),
    ({"attention__head_count_kv": 3}, "llama.attention.head_count_kv is 3, which does not divide head_count 4"),
    ({"attention__key_length": 9, "attention__value_length": 9, "rope__dimension_count": 9},
     "llama.attention.key_length must be even for RoPE, got 9"),
    ({"attention__head_count": [4, 4]}, "llama.attention.head_count has 2 values for 3 layers"),
    ({"attention__layer_norm_rms_epsilon": 0.0},
     "llama.attention.layer_norm_rms_epsilon must be a number above 0, got 0.0"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "text"), WRONG, ids=[text for _, text in WRONG])
def test_a_wrong_value_is_an_error(changes: dict[str, Any], text: str) -> None:
    metadata, shapes = llama_metadata(**changes)
    with pytest.raises(ModelError) as raised:
        config_fields(metadata, shapes, NAME)
    assert str(raised.value) == f"a.gguf: {text}"


@pytest.mark.parametrize(
    "key",
    ["block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
     "attention.layer_norm_rms_epsilon"],
)  # fmt: skip
def test_a_missing_key_is_an_error(key: str) -> None:
    metadata, shapes = llama_metadata()
    del metadata[f"llama.{key}"]
    with pytest.raises(ModelError) as raised:
        config_fields(metadata, shapes, NAME)
    assert str(raised.value) == f"a.gguf: llama.{key} is missing"


@pytest.mark.parametrize("heads", [6, 128])
def test_heads_that_do_not_divide_the_width_need_a_length(heads: int) -> None:
    metadata, shapes = llama_metadata(attention__head_count=heads)
    assert config_fields(metadata, shapes, NAME)["head_dim"] == 16
    del metadata["llama.attention.key_length"], metadata["llama.attention.value_length"]
    with pytest.raises(ModelError) as raised:
        config_fields(metadata, shapes, NAME)
    text = f"a.gguf: llama.attention.head_count is {heads}, which does not divide embedding_length 64"
    assert str(raised.value) == text


def test_equal_values_of_layers_are_one_value() -> None:
    one, shapes = llama_metadata()
    many, _ = llama_metadata(
        attention__head_count=[4] * 3, attention__head_count_kv=[2] * 3, feed_forward_length=[96] * 3
    )
    assert config_fields(one, shapes, NAME) == config_fields(many, shapes, NAME)


def test_absent_keys_have_the_defaults_of_llama_cpp() -> None:
    metadata, shapes = llama_metadata()
    for key in ("attention.head_count_kv", "rope.freq_base", "rope.dimension_count", "vocab_size"):
        del metadata[f"llama.{key}"]
    del metadata["tokenizer.ggml.bos_token_id"], metadata["tokenizer.ggml.eos_token_id"]
    fields = config_fields(metadata, shapes, NAME)
    assert (fields["num_key_value_heads"], fields["head_dim"], fields["rope_theta"]) == (4, 16, 10000.0)
    config = parse_decoder_config(fields)
    assert (config.bos_token_id, config.eos_token_ids) == (None, ())


def test_the_rows_of_the_embedding_are_the_vocabulary() -> None:
    metadata, shapes = llama_metadata(vocab_size=400)
    assert config_fields(metadata, shapes, NAME)["vocab_size"] == 304
    del shapes["token_embd.weight"]
    assert config_fields(metadata, shapes, NAME)["vocab_size"] == 400
    del metadata["llama.vocab_size"]
    metadata["tokenizer.ggml.tokens"] = ["a"] * 17
    assert config_fields(metadata, shapes, NAME)["vocab_size"] == 17


@pytest.mark.parametrize("shape", [(), (300,), (0, 64), (2**40, 64), (1, 2, 3)])
def test_an_embedding_of_another_shape_is_an_error(shape: tuple[int, ...]) -> None:
    metadata, shapes = llama_metadata()
    with pytest.raises(ModelError, match=r"^a\.gguf: tensor token_embd\.weight has shape "):
        config_fields(metadata, shapes | {"token_embd.weight": shape}, NAME)


def test_biases_of_a_part_of_the_projections_are_not_supported() -> None:
    metadata, shapes = llama_metadata()
    with pytest.raises(UnsupportedModel) as raised:
        config_fields(metadata, shapes | {"blk.0.attn_q.bias": (64,)}, NAME)
    assert str(raised.value).startswith("a.gguf has biases in a part of self_attn.q_proj, self_attn.k_proj, ")


def test_a_file_ends_sequences_at_three_kinds_of_tokens() -> None:
    metadata, shapes = llama_metadata()
    ends = {"tokenizer.ggml.eot_token_id": 9, "tokenizer.ggml.eom_token_id": 2}
    assert config_fields(metadata | ends, shapes, NAME)["eos_token_id"] == [2, 9]


@pytest.mark.parametrize(
    ("types", "dtype"),
    [
        ({"token_embd.weight": "F16", "output.weight": "F16", "blk.0.attn_norm.weight": "F32"}, "float16"),
        ({"token_embd.weight": "F32", "output.weight": "F32"}, "float32"),
        ({"token_embd.weight": "BF16", "output.weight": "BF16"}, "bfloat16"),
        ({"token_embd.weight": "F16", "output.weight": "Q6_K"}, "bfloat16"),
        ({"token_embd.weight": "F16"}, "bfloat16"),
        (None, "bfloat16"),
    ],
)
def test_the_dtype_is_that_of_all_matrices(types: dict[str, str] | None, dtype: str) -> None:
    metadata, shapes = llama_metadata()
    fields = config_fields(metadata, shapes, NAME, tensor_types=types)
    assert parse_decoder_config(fields).dtype == dtype


def test_float16_is_not_the_dtype_of_an_architecture_whose_activations_exceed_it() -> None:
    config = tiny_config("gemma3", architectures=["Gemma3ForCausalLM"])
    shapes = shapes_of(config)
    types = {name: "F16" for name, shape in shapes.items() if len(shape) > 1}
    fields = config_fields(converted_metadata(config), shapes, NAME, tensor_types=types)
    assert fields["torch_dtype"] == "bfloat16"


FULL, SLIDING = None, 20


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, [SLIDING] * 5 + [FULL, SLIDING]),
        ({"attention__sliding_window_pattern": 2}, [SLIDING, FULL] * 3 + [SLIDING]),
        ({"attention__sliding_window_pattern": 1}, [FULL] * 7),
        ({"attention__sliding_window_pattern": 0}, [SLIDING] * 7),
        ({"attention__sliding_window_pattern": [True, False, True, True, True, True, 0]},
         [SLIDING, FULL, SLIDING, SLIDING, SLIDING, SLIDING, FULL]),
        ({"attention__sliding_window": 0}, [FULL] * 7),
    ],
)  # fmt: skip
def test_layers_of_gemma3_slide_by_the_pattern(changes: dict[str, Any], windows: list[int | None]) -> None:
    metadata, shapes = with_changes("gemma3", changes)
    fields = config_fields(metadata, shapes, NAME)
    assert list(parse_decoder_config(fields).layer_windows) == windows
    assert AutoConfig.for_model(**fields).sliding_window == fields["sliding_window"]


def test_a_window_of_the_whole_context_is_none() -> None:
    metadata, shapes = llama_metadata(attention__sliding_window=original("llama").max_position_embeddings)
    assert parse_decoder_config(config_fields(metadata, shapes, NAME)).layer_windows == (None,) * 3


def test_gemma3_takes_the_scale_and_the_base_of_sliding_layers_from_keys() -> None:
    metadata, shapes = with_changes("gemma3", {"attention__scale": 168**-0.5, "rope__freq_base_swa": 5000.0})
    config = parse_decoder_config(config_fields(metadata, shapes, NAME))
    assert config.attention_scale == 168**-0.5
    assert (config.rope.theta, config.sliding_rope.theta) == (1e6, 5000.0)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"rope__scaling__factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"rope__scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        ({"rope__scaling__type": "none", "rope__scaling__factor": 4.0}, None),
        ({"rope__scaling__type": "linear"}, None),
        ({"rope__scaling__type": "linear", "rope__scaling__factor": 0.0}, None),
    ],
)
def test_a_factor_without_a_type_is_linear(keys: dict[str, Any], expected: dict[str, Any] | None) -> None:
    metadata, shapes = llama_metadata(**keys)
    assert config_fields(metadata, shapes, NAME)["rope_scaling"] == expected


@pytest.mark.parametrize(
    ("keys", "factor"),
    [
        ({}, 0.1 * math.log(4) + 1),
        ({"yarn_attn_factor": 1.25}, 1.25),
        ({"attn_factor": 2.0}, 2 * (0.1 * math.log(4) + 1)),
        ({"attn_factor": 2.0, "yarn_attn_factor": 1.25}, 2.5),
        ({"yarn_log_multiplier": 0.5}, (0.1 * math.log(4) + 1) / (0.05 * math.log(4) + 1)),
    ],
)
def test_factors_on_cosines_of_yarn(keys: dict[str, float], factor: float) -> None:
    metadata, shapes = with_changes("yarn", {f"rope__scaling__{key}": each for key, each in keys.items()})
    config = parse_decoder_config(config_fields(metadata, shapes, NAME))
    assert inverse_frequencies(config.rope, 16)[1] == pytest.approx(factor, rel=1e-12)


KEYS = (
    "vocab_size", "context_length", "embedding_length", "block_count", "feed_forward_length", "expert_count",
    "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length",
    "attention.layer_norm_rms_epsilon", "attention.causal", "attention.scale", "attention.sliding_window",
    "attention.sliding_window_pattern", "final_logit_softcapping", "rope.dimension_count", "rope.freq_base",
    "rope.freq_base_swa", "rope.scaling.type", "rope.scaling.factor", "rope.scale_linear", "rope.scaling.alpha",
    "rope.scaling.attn_factor", "rope.scaling.original_context_length", "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_log_multiplier",
)  # fmt: skip
NOT_IN_GEMMA = {"attention.sliding_window_pattern", "rope.freq_base_swa"}
TOKEN_KEYS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("bos", "eos", "eot", "eom"))


def check_one_sentence(error: ModelError) -> None:
    text = str(error)
    assert text.startswith(NAME)
    assert "\n" not in text
    assert len(text) < 300
    assert ". " not in text


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("case", ["yarn", "gemma3"])
def test_a_wrong_type_of_every_key_is_an_error_that_names_it(case: str, key: str) -> None:
    wrong_values: tuple[Any, ...] = (None, {"a": 1}, [], [[4]] * 3, [None] * 7, b"4", object(), ["x"] * 100_000)
    for value in wrong_values:
        metadata, shapes = with_changes(case, {key.replace(".", "__"): value})
        if case == "yarn" and key in NOT_IN_GEMMA:
            config_fields(metadata, shapes, NAME)  # not read in this architecture
            continue
        if case == "gemma3" and key.startswith("rope.scaling."):
            metadata["gemma3.rope.scaling.type"] = metadata.get("gemma3.rope.scaling.type", "yarn")
        with pytest.raises(ModelError) as raised:
            config_fields(metadata, shapes, NAME)
        assert f"{metadata['general.architecture']}.{key} " in str(raised.value)
        check_one_sentence(raised.value)


@pytest.mark.parametrize("key", TOKEN_KEYS)
@pytest.mark.parametrize("value", [None, "2", -1, 2.0, True, [2], 2**32])
def test_a_wrong_type_of_a_token_is_an_error(key: str, value: Any) -> None:
    metadata, shapes = llama_metadata()
    with pytest.raises(ModelError) as raised:
        config_fields(metadata | {key: value}, shapes, NAME)
    assert f"{key} must be" in str(raised.value)
    check_one_sentence(raised.value)


values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-2, 200), st.floats(), st.floats(0, 100), st.text(max_size=8),
    st.sampled_from(["yarn", "linear", "none"]), st.lists(st.integers(0, 9), min_size=7, max_size=7),
    st.lists(st.none() | st.booleans() | st.floats(), max_size=8),
)  # fmt: skip


@given(
    st.sampled_from(["llama", "yarn", "qwen2", "qwen3", "gemma3"]),
    st.dictionaries(st.sampled_from(KEYS), values, min_size=1, max_size=4),
    st.dictionaries(st.sampled_from([*TOKEN_KEYS, "tokenizer.ggml.tokens", "general.type"]), values, max_size=2),
)
def test_any_metadata_are_a_config_or_an_error_in_one_sentence(
    case: str, changes: dict[str, Any], others: dict[str, Any]
) -> None:
    metadata, shapes = with_changes(case, {key.replace(".", "__"): each for key, each in changes.items()})
    try:
        fields = config_fields(metadata | others, shapes, NAME)
    except ModelError as error:
        check_one_sentence(error)
        return
    config = parse_decoder_config(fields)
    assert json.loads(json.dumps(fields, allow_nan=False)) == fields
    assert len(config.layer_windows) == config.num_layers <= original(case).num_hidden_layers


def test_reading_a_config_imports_neither_torch_nor_the_package_gguf() -> None:
    code = (
        "import sys, chairlift.model.config.gguf_config\n"
        "assert not {'torch', 'transformers', 'numpy', 'gguf'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

"""GGUF files of every architecture: logits in float64 are those of transformers' model with the numbers of the file."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chairlift.core.errors import ModelError, UnsupportedModel
from chairlift.model.config.architectures.config_parsing import parse_decoder_config, read_decoder_config
from chairlift.model.config.gguf_file import read_gguf
from chairlift.model.config.gguf_folder import folder_contents, gguf_folder
from chairlift.model.weights.checkpoint import Checkpoint
from chairlift.model.weights.gguf_blocks import dequantize
from support_dense_logits import assert_equal_logits, assert_logits_of_saved
from support_gguf_models import MIXES, write_gguf
from support_native_models import load_native, relative_error
from support_shares import for_each

KINDS = (
    "gemma2", "qwen3_moe", "mixtral", "olmoe", "gpt_oss", "qwen3_5", "qwen3_5_moe", "qwen3_next", "phi3",
    "phi3-partial", "smollm3", "granite", "granite_hybrid", "granite_hybrid_moe", "lfm2", "olmo2", "olmo3",
    "ministral3", "glm4",
)  # fmt: skip


IN_FLOAT32 = ("gemma2", "qwen3_5", "qwen3_5_moe", "qwen3_next", "granite_hybrid", "granite_hybrid_moe")
"""Kinds of which transformers computes some steps in float32, whatever the dtype."""


def assert_logits(kind: str, model: Any, folder: Path) -> None:
    if kind in IN_FLOAT32:
        assert_logits_of_saved(gguf_folder(folder / "a.gguf"), model, folder / "saved")
    else:
        assert_equal_logits(gguf_folder(folder / "a.gguf"), model)


def mxfp4_experts(name: str) -> str:
    """Return the types of a file of gpt-oss: experts as published, other matrices in 8 bits."""
    return "MXFP4" if "_exps" in name else "Q8_0"


@pytest.mark.share(6)
@pytest.mark.parametrize("mix", ["F32", "F16", "Q8_0", "Q4_0", "Q4_K_M"])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_numbers_in_the_file(kind: str, mix: str, tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "a.gguf", kind, MIXES[mix])
    assert_logits(kind, model, tmp_path)


@pytest.mark.parametrize("kind", ["gpt_oss", "qwen3_moe"])
def test_experts_in_mxfp4(kind: str, tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "a.gguf", kind, mxfp4_experts)
    assert_logits(kind, model, tmp_path)
    weights = Checkpoint.open(gguf_folder(tmp_path / "a.gguf"), model.config.architectures[0]).tensors
    assert weights["model.layers.1.mlp.experts.2.down_proj.weight"].codes_type == "MXFP4"


@for_each(("kind", "tied"), [(kind, tied) for kind in ("smollm3", "granite", "qwen3_5") for tied in (False, True)])
def test_heads_with_a_matrix_of_their_own_and_without(kind: str, tied: bool, tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "a.gguf", kind, MIXES["Q8_0"], tie_word_embeddings=tied)
    assert_logits(kind, model, tmp_path)


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "no biases": ("glm4", {"attention_bias": False}),
    "a head of values narrower than a block": ("qwen3_5", {"linear_value_head_dim": 16}),
    "as many heads of keys as of values": ("qwen3_5", {"linear_num_key_heads": 4}),
    "older Phi-3": ("phi3", {"sliding_window": None, "tie_word_embeddings": True}),
    "yarn": ("gpt_oss", {"rope_parameters": {
        "rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "truncate": False, "original_max_position_embeddings": 64}}),
    "no convolution bias": ("granite_hybrid", {"mamba_conv_bias": False}),
}  # fmt: skip


@for_each("case", CASES)
def test_variants_of_architectures(case: str, tmp_path: Path) -> None:
    kind, changes = CASES[case]
    model = write_gguf(tmp_path / "a.gguf", kind, MIXES["Q8_0"], **changes)
    assert_logits(kind, model, tmp_path)


@pytest.mark.share(4)
@pytest.mark.parametrize("mix", ["Q8_0", "Q4_0", "Q4_K_M"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_native_kernels_multiply_by_the_codes_of_the_file(kind: str, mix: str, tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "a.gguf", kind, MIXES[mix])
    loaded = load_native(tmp_path / "a.gguf")
    # Inputs of products are rounded to 8 bits, and a router may choose another expert then.
    assert loaded.kept is not None and relative_error(loaded, model) < 0.4
    assert relative_error(load_native(tmp_path / "a.gguf", quantization="none"), model) < 1e-3


@for_each("kind", KINDS)
def test_the_config_is_that_of_the_original_model(kind: str, tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "a.gguf", kind, MIXES["Q8_0"])
    found = read_decoder_config(gguf_folder(tmp_path / "a.gguf"))
    expected = parse_decoder_config(json.loads(model.config.to_json_string()))
    assert replace(found, dtype=None) == replace(expected, dtype=None)


def test_blocks_that_predict_later_tokens_are_left_out(tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "a.gguf", "qwen3_5", MIXES["Q8_0"], more_blocks=1)
    assert any(tensor.startswith("blk.4.") for tensor in read_gguf(tmp_path / "a.gguf").tensors)
    assert_logits("qwen3_5", model, tmp_path)


def test_older_files_of_qwen3_next_have_its_joined_projections(tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "a.gguf", "qwen3_next", MIXES["Q8_0"], keeps_joined=True)
    assert "blk.0.ssm_in.weight" in read_gguf(tmp_path / "a.gguf").tensors
    assert_logits("qwen3_next", model, tmp_path)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("granite", {"rope.scaling.finetuned": False}, "granite.rope.scaling.finetuned is false, so no layer rotates"),
    ("olmoe", {"attention.clamp_kqv": 8.0}, "olmoe.attention.clamp_kqv is 8.0"),
    ("glm4", {"rope.dimension_sections": [8, 12, 12, 0]},
     "glm4.rope.dimension_sections is that of a model with images"),
    ("qwen3_moe", {"expert_weights_scale": 2.5}, "qwen3moe.expert_weights_scale is 2.5, not 1"),
    ("qwen3_moe", {"expert_group_count": 4}, "qwen3moe.expert_group_count is 4, not 1"),
    ("qwen3_moe", {"expert_gating_func": 2}, "qwen3moe.expert_gating_func is 2, not that of a softmax"),
    ("qwen3_5", {"ssm.inner_size": 129}, "qwen35.ssm.inner_size is 129, not a multiple of 4 heads"),
    ("lfm2", {"attention.head_count_kv": [0, 2, 4, 0]},
     "lfm2.attention.head_count_kv has 2 numbers of heads in layers with attention"),
    ("granite_hybrid", {"ssm.inner_size": 500}, "granitehybrid.ssm.inner_size is 500, not a multiple of 256 and of 8"),
]  # fmt: skip


@for_each(("kind", "changes", "text"), REFUSED)
def test_what_cannot_be_computed_is_refused(kind: str, changes: dict[str, Any], text: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", kind, MIXES["Q8_0"])
    gguf = read_gguf(tmp_path / "a.gguf")
    section = gguf.metadata["general.architecture"]
    metadata = gguf.metadata | {f"{section}.{key}": value for key, value in changes.items()}
    with pytest.raises(UnsupportedModel) as raised:
        folder_contents(replace(gguf, metadata=metadata))
    assert text in str(raised.value) and "use the original model in safetensors" in str(raised.value)


LARGEST = 2**31 - 1
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("qwen3_5", {"ssm.state_size": LARGEST},
     "qwen35.ssm.state_size requires shape (8589934716, 4) of tensor blk.0.ssm_conv1d.weight, which has (256, 4)"),
    ("qwen3_next", {"ssm.conv_kernel": LARGEST}, "qwen3next.ssm.state_size requires shape (256, 2147483647)"),
    ("qwen3_5", {"attention.head_count": 2**20}, "qwen35.attention.head_count requires shape (134217728, 256)"),
    ("granite_hybrid", {"ssm.conv_kernel": LARGEST}, "granitehybrid.ssm.state_size requires shape"),
    ("lfm2", {"shortconv.l_cache": LARGEST}, "lfm2.shortconv.l_cache requires shape (256, 2147483647)"),
    ("qwen3_moe", {"expert_count": LARGEST},
     "qwen3moe.expert_count is 2147483647, but the file has tensors of 8 experts"),
    ("gpt_oss", {"expert_feed_forward_length": LARGEST},
     "gpt-oss.expert_feed_forward_length is 2147483647, but experts in the file have 256 neurons"),
    ("gemma2", {"embedding_length": LARGEST}, "not [vocab_size, embedding_length 2147483647]"),
]  # fmt: skip


@for_each(("kind", "changes", "text"), WRONG)
def test_sizes_that_the_tensors_do_not_have_are_named_before_anything_has_them(
    kind: str, changes: dict[str, Any], text: str, tmp_path: Path
) -> None:
    write_gguf(tmp_path / "a.gguf", kind, MIXES["Q8_0"])
    gguf = read_gguf(tmp_path / "a.gguf")
    section = gguf.metadata["general.architecture"]
    metadata = gguf.metadata | {f"{section}.{key}": value for key, value in changes.items()}
    with pytest.raises(ModelError) as raised:
        folder_contents(replace(gguf, metadata=metadata))
    assert text in str(raised.value)


def test_a_decay_that_grows_is_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", "qwen3_5", MIXES["F32"])
    tensor = read_gguf(tmp_path / "a.gguf").tensors["blk.0.ssm_a"]
    with (tmp_path / "a.gguf").open("r+b") as file:
        file.seek(tensor.offset)
        file.write(np.float32(0.5).tobytes())
    weights = Checkpoint.open(gguf_folder(tmp_path / "a.gguf"), "Qwen3_5ForCausalLM").tensors
    with pytest.raises(ModelError, match=r"tensor blk\.0\.ssm_a in .* must have finite numbers below 0"):
        weights["model.layers.0.linear_attn.A_log"].dense()


@for_each(
    ("kind", "width", "kept"), [("Q8_0", 32, True), ("Q4_K", 64, False), ("Q8_0", 16, False), ("Q4_K", 256, True)]
)
def test_columns_are_ordered_on_whole_blocks(kind: str, width: int, kept: bool, tmp_path: Path) -> None:
    changes = {"linear_value_head_dim": width, "linear_num_value_heads": 4}
    model = write_gguf(tmp_path / "a.gguf", "qwen3_5", lambda name: kind if "ssm_out" in name else "Q8_0", **changes)
    name = "model.layers.0.linear_attn.out_proj.weight"
    weight = Checkpoint.open(gguf_folder(tmp_path / "a.gguf"), "Qwen3_5ForCausalLM").tensors[name]
    expected = dict(model.named_parameters())[name]
    assert torch.equal(weight.dense().double(), expected) and (weight.codes_type is not None) == kept
    if kept:
        codes = weight.codes()
        assert torch.equal(torch.from_numpy(dequantize(codes.rows, codes.type)).double(), expected)

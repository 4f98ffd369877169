"""Names of tensors against the package gguf's own map, and the order of rows against a rotation of pairs."""

import numpy as np
import pytest
import torch

from chairlift.core.errors import UnsupportedModel
from chairlift.model.config.gguf_architectures import GGUF_ARCHITECTURES
from chairlift.model.config.gguf_tensor_names import (
    canonical_tensor_name,
    canonical_tensor_names,
    gguf_tensor_name,
    head_order,
    norm_offset,
    row_order,
)
from support_gguf_config import ARCHITECTURES, GGUF_KINDS, converted_names, smollm2
from support_models import VARIANTS, tiny_hf_model
from support_shares import for_each

LLAMA, QWEN3, GEMMA2, GEMMA3 = (GGUF_ARCHITECTURES[name] for name in ("llama", "qwen3", "gemma2", "gemma3"))
QUERY, KEY = "model.layers.0.self_attn.q_proj.weight", "model.layers.11.self_attn.k_proj.bias"


@for_each("kind", GGUF_KINDS)
def test_names_are_those_of_the_package_gguf_in_both_directions(kind: str) -> None:
    model = tiny_hf_model(kind)
    parameters = [name for name, _ in model.named_parameters()]
    architecture = GGUF_ARCHITECTURES[ARCHITECTURES[VARIANTS[kind][1]]]
    names = converted_names(parameters, architecture.name, model.config.num_hidden_layers)
    assert {name: gguf_tensor_name(name, architecture) for name in parameters} == names
    assert canonical_tensor_names(names.values(), architecture, "a.gguf") == names


def test_every_tensor_of_a_real_file_has_a_name() -> None:
    stored = [tensor.name for tensor in smollm2().tensors]
    names = canonical_tensor_names(stored, LLAMA, "smollm2.gguf")
    assert sorted(names.values()) == sorted(stored)
    assert len(names) == 2 + 30 * 9
    assert names["model.layers.29.mlp.down_proj.weight"] == "blk.29.ffn_down.weight"


@pytest.mark.parametrize(
    "name",
    ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight", "blk.3.attn_rot_embd.weight"],
)
def test_a_tensor_that_is_no_parameter_is_left_out(name: str) -> None:
    assert canonical_tensor_name(name, LLAMA) is None
    assert canonical_tensor_names([name, "output.weight"], LLAMA, "a.gguf") == {"lm_head.weight": "output.weight"}


@pytest.mark.parametrize(
    "name",
    [
        "blk.0.ffn_gate_exps.weight", "blk.0.attn_q_norm.weight", "blk.0.attn_norm.bias", "output.bias",
        "cls.output.weight", "blk.00.attn_q.weight", "blk.x.attn_q.weight", "blk.0.attn_q.scale", "xrope_freqs.weight",
        "model.norm.weight", QUERY, "",
    ],
)  # fmt: skip
def test_a_tensor_that_the_architecture_does_not_have_is_refused(name: str) -> None:
    assert canonical_tensor_name(name, LLAMA) is None
    with pytest.raises(UnsupportedModel) as raised:
        canonical_tensor_names(["output.weight", name], LLAMA, "a.gguf")
    assert str(raised.value).startswith(f"a.gguf has tensor {name!r}, not one of architecture llama; use the original")


def test_a_name_of_a_thousand_characters_is_shown_in_part() -> None:
    with pytest.raises(UnsupportedModel) as raised:
        canonical_tensor_names(["x" * 1000], LLAMA, "a.gguf")
    assert len(str(raised.value)) < 300


def test_further_unknown_tensors_are_counted() -> None:
    with pytest.raises(UnsupportedModel, match=r"^a\.gguf has tensor 'a' and 2 more, not one of"):
        canonical_tensor_names("abc", LLAMA, "a.gguf")


@pytest.mark.parametrize(
    "name", ["model.layers.0.self_attn.q_norm.weight", "model.layers.0.foo.weight", "blk.0", "norm"]
)
def test_a_parameter_that_the_architecture_does_not_have_has_no_name(name: str) -> None:
    assert gguf_tensor_name(name, LLAMA) is None


def rotate_pairs(rows: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Rotate elements 2i and 2i + 1 by angle i."""
    even, odd, cos, sin = rows[0::2], rows[1::2], np.cos(angles), np.sin(angles)
    rotated = np.empty_like(rows)
    rotated[0::2], rotated[1::2] = even * cos - odd * sin, even * sin + odd * cos
    return rotated


def rotate_halves(rows: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Rotate elements i and i + half by angle i."""
    (first, second), cos, sin = np.split(rows, 2), np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, first * sin + second * cos])


@pytest.mark.parametrize(("heads", "head_dim"), [(1, 2), (1, 8), (3, 6), (9, 64)])
def test_pairs_rotate_as_halves_after_the_rows_are_in_order(heads: int, head_dim: int) -> None:
    generator = np.random.default_rng(0)
    stored, hidden = generator.standard_normal((heads * head_dim, 5)), generator.standard_normal(5)
    angles = generator.standard_normal(head_dim // 2)
    order = head_order(heads * head_dim, heads)
    assert sorted(order) == list(range(heads * head_dim))
    for query, other in zip(np.split(stored @ hidden, heads), np.split(stored[order] @ hidden, heads), strict=True):
        rotated, within = rotate_pairs(query, angles), head_order(head_dim, 1)
        assert np.allclose(rotated[within], rotate_halves(other, angles), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("heads", "head_dim"), [(2, 8), (9, 64)])
def test_the_order_is_a_swap_of_two_axes_and_undoes_the_converters(heads: int, head_dim: int) -> None:
    rows = torch.arange(heads * head_dim)
    stored = rows.reshape(heads, 2, head_dim // 2).swapaxes(1, 2).reshape(-1)
    assert torch.equal(stored[head_order(len(rows), heads)], rows)
    assert head_order(len(rows), heads) == rows.reshape(heads, head_dim // 2, 2).swapaxes(1, 2).reshape(-1).tolist()


def test_only_queries_and_keys_of_llama_have_another_order() -> None:
    assert row_order(QUERY, LLAMA, 24, 3, 1) == head_order(24, 3)
    assert row_order(KEY, LLAMA, 24, 6, 2) == head_order(24, 2)
    assert row_order("model.layers.0.self_attn.v_proj.weight", LLAMA, 24, 3, 3) is None
    assert row_order("model.embed_tokens.weight", LLAMA, 24, 3, 3) is None
    assert row_order(QUERY, QWEN3, 24, 3, 3) is row_order(QUERY, GEMMA3, 24, 3, 3) is None


@for_each("kind", GGUF_KINDS)
def test_norms_of_gemma_alone_have_an_offset(kind: str) -> None:
    architecture = GGUF_ARCHITECTURES[ARCHITECTURES[VARIANTS[kind][1]]]
    for name, parameter in tiny_hf_model(kind).named_parameters():
        is_norm = parameter.ndim == 1 and name.endswith(".weight")
        assert norm_offset(name, architecture) == (1.0 if is_norm and architecture in (GEMMA2, GEMMA3) else 0.0)

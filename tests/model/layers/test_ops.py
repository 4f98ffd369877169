"""TorchOps against transformers' modules, bit for bit in every dtype: its float32 islands are ours."""

import pytest
import torch
from transformers.activations import ACT2FN
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from chairlift.model.config.activations import ACTIVATIONS
from chairlift.model.kernels.float8_linear import Float8Weight, quantize_rows
from chairlift.model.layers.ops import TorchOps
from support_shares import for_each

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
ops = TorchOps()


def drawn(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_norm_of_llama_rounds_before_it_weighs(dtype: torch.dtype) -> None:
    x, weight = drawn(5, 48, dtype=dtype) * 3, drawn(48, dtype=dtype)
    theirs = LlamaRMSNorm(48, 1e-5).to(dtype)
    theirs.weight.data = weight
    assert torch.equal(ops.rms_norm(x, weight, 1e-5), theirs(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_norm_of_gemma_weighs_before_it_rounds(dtype: torch.dtype) -> None:
    x, weight = drawn(5, 48, dtype=dtype) * 3, drawn(48, dtype=dtype)
    theirs = Gemma3RMSNorm(48, 1e-5).to(dtype)
    theirs.weight.data = weight
    assert torch.equal(ops.rms_norm_float32(x, 1.0 + weight.float(), 1e-5), theirs(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_is_rounded_before_it_is_normalised(dtype: torch.dtype) -> None:
    x, y, weight = drawn(5, 48, dtype=dtype) * 3, drawn(5, 49, dtype=dtype)[:, 1:], drawn(48, dtype=dtype)
    total = x + y
    for norm in ("rms_norm", "rms_norm_float32"):
        found, normed = getattr(ops, f"add_{norm}")(x, y, weight, 1e-5)
        assert torch.equal(found, total)
        assert torch.equal(normed, getattr(ops, norm)(total, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_rotation_equals_transformers(dtype: torch.dtype) -> None:
    query, angles = drawn(6, 4, 16, dtype=dtype), drawn(6, 8, dtype=torch.float32)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    wide = torch.cat((cos, cos), -1)[None], torch.cat((sin, sin), -1)[None]
    expected, _ = apply_rotary_pos_emb(query.transpose(0, 1)[None], query.transpose(0, 1)[None], *wide)
    twice = torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None]
    assert torch.equal(ops.rotate(query, *twice), expected[0].transpose(0, 1))


@for_each("dtype", DTYPES)
@for_each("activation", ACTIVATIONS)
def test_every_activation_of_a_config_is_known(activation: str, dtype: torch.dtype) -> None:
    gate, up = drawn(4, 9, dtype=dtype), drawn(4, 10, dtype=dtype)[:, :9]
    assert torch.equal(ops.gated_activation(gate, up, activation), ACT2FN[activation](gate) * up)


def test_the_soft_cap_divides_and_multiplies() -> None:
    logits = drawn(3, 7, dtype=torch.float32) * 40
    assert torch.equal(ops.softcap(logits, 30.0), torch.tanh(logits / 30.0) * 30.0)


def test_linear_and_embedding_are_torchs() -> None:
    x, weight, bias = (drawn(*shape, dtype=torch.float64) for shape in ((3, 4), (5, 4), (5,)))
    assert torch.allclose(ops.linear(x, weight, bias), x @ weight.T + bias)
    assert torch.allclose(ops.linear(x, weight, None), x @ weight.T)
    assert ops.pack(weight) is weight
    assert torch.equal(ops.embed(torch.tensor([4, 0]), weight), weight[[4, 0]])


def test_no_operation_changes_its_arguments() -> None:
    x, other, weight = drawn(2, 4, 8, dtype=torch.float32), drawn(2, 4, 8, dtype=torch.float32), torch.ones(8)
    cos, sin = torch.rand(2, 1, 8), torch.rand(2, 1, 8)
    before = x.clone()
    ops.rms_norm(x, weight, 1e-6), ops.rms_norm_float32(x, weight, 1e-6), ops.gated_activation(x, other, "silu")
    ops.rotate(x, cos, sin), ops.softcap(x, 2.0), ops.linear(x, torch.ones(3, 8), None)
    assert torch.equal(x, before)


def test_a_product_is_chosen_by_the_type_of_the_weight() -> None:
    x, weight = torch.ones(2, 3), torch.full((4, 3), 2.0)
    eight_bits = Float8Weight(*quantize_rows(weight))
    assert torch.equal(TorchOps().linear(x, torch.nn.Parameter(weight), None), torch.full((2, 4), 6.0))
    torch.testing.assert_close(TorchOps().linear(x, eight_bits, torch.ones(4)), torch.full((2, 4), 7.0))
    assert eight_bits.shape == (4, 3)

"""Linear: biases and joined projections; RMSNorm: joined heads, norms of sums, and Gemma's kind in float32."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from chairlift.model.layers.linear_and_rms_norm import Linear, RMSNorm
from chairlift.model.layers.ops import TorchOps
from chairlift.model.weights.parameter_loader import ParameterLoader
from support_decoder_shape import shape

ops = TorchOps()


@pytest.mark.parametrize("bias", [True, False])
def test_a_projection_takes_a_bias_only_where_there_is_one(bias: bool) -> None:
    taken: dict[str, tuple[int, ...]] = {}

    def take(name: str, wanted: tuple[int, ...]) -> Tensor:
        taken[name] = wanted
        return torch.ones(wanted)

    linear = Linear.load(ParameterLoader(take), {"p": 3}, 2, bias)
    assert taken == {"p.weight": (3, 2), **({"p.bias": (3,)} if bias else {})}
    assert linear(torch.ones(1, 2), ops).tolist() == [[3.0] * 3 if bias else [2.0] * 3]


def test_projections_of_one_input_lie_below_each_other() -> None:
    values = {"a.weight": 1.0, "b.weight": 2.0, "a.bias": 10.0, "b.bias": 20.0}
    take = ParameterLoader(lambda name, wanted: torch.full(wanted, values[name]))
    both = Linear.load(take, {"a": 1, "b": 2}, 3, bias=True)
    assert both(torch.ones(1, 3), ops).tolist() == [[13.0, 26.0, 26.0]]


def test_query_and_key_heads_keep_their_own_norms_when_they_are_normalised_together() -> None:
    x = torch.randn(5, 6, 8, dtype=torch.float64)
    query, key = (RMSNorm(torch.randn(8, dtype=torch.float64), 1e-6) for _ in range(2))
    together = query.concat_heads(key, 4, 2)(x, ops)
    assert torch.equal(together, torch.cat((query(x[:, :4], ops), key(x[:, 4:], ops)), 1))


@pytest.mark.parametrize("gemma", [True, False])
def test_a_norm_of_a_sum_is_that_of_its_kind(gemma: bool) -> None:
    x, update = torch.randn(5, 8).bfloat16(), torch.randn(5, 8).bfloat16()
    weight = torch.randn(8)
    norm = RMSNorm(weight if gemma else weight.bfloat16(), 1e-6, gemma)
    total, normed = norm.of_sum(x, update, ops)
    assert torch.equal(total, x + update)
    assert torch.equal(normed, norm(total, ops))
    same, normed = norm.of_sum(x, None, ops)
    assert same is x
    assert torch.equal(normed, norm(x, ops))


def test_a_norm_of_gemmas_kind_has_its_one_added_in_float32() -> None:
    def take(name: str, wanted: tuple[int, ...]) -> Tensor:
        return torch.full(wanted, 0.001, dtype=torch.bfloat16)

    gemma, llama = (
        RMSNorm.load(ParameterLoader(take), "n", 4, replace(shape(), norm_offset=offset)) for offset in (1.0, 0.0)
    )
    assert gemma.weight.dtype == torch.float32
    assert float(gemma.weight[0]) == pytest.approx(1.001, abs=1e-5)  # bfloat16 has nothing between 1 and 1.0078
    assert llama.weight.dtype == torch.bfloat16
    x = torch.tensor([[3.0, -3.0, 3.0, -3.0]], dtype=torch.bfloat16)
    assert gemma(x, ops).tolist() == [[1.0, -1.0, 1.0, -1.0]]
    assert gemma(x, ops).dtype == llama(x, ops).dtype == torch.bfloat16

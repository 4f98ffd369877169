"""AdaptedLinear: rows of several adapters and without one, in stacked projections, with gains."""

import numpy as np
import torch

from chairlift.model.layers.adapted_linear import AdaptedLinear, adapt_linears, adaptable_projections
from chairlift.model.layers.linear_and_rms_norm import Linear, RMSNorm
from chairlift.model.layers.mlp import MLP
from chairlift.model.layers.ops import TorchOps
from chairlift.model.lora.adapter_weights import AdapterWeights, LowRank
from chairlift.model.lora.row_adapters import RowAdapters

OPS, CPU = TorchOps(), torch.device("cpu")


def low_rank(outputs: int, inputs: int, seed: int, *, has_gain: bool = False) -> LowRank:
    generator = torch.Generator().manual_seed(seed)
    gain = torch.rand(outputs, generator=generator).double() if has_gain else None
    a = torch.randn(3, inputs, generator=generator).double()
    return LowRank(a, torch.randn(outputs, 3, generator=generator).double(), 0.7, gain)


def test_each_row_has_the_product_of_its_own_adapter() -> None:
    torch.manual_seed(0)
    weight, bias, x = (torch.randn(shape, dtype=torch.float64) for shape in ((9, 5), (9,), (6, 5)))
    plain, adapters = Linear(weight, bias, {"q": 4, "k": 2, "v": 3}), RowAdapters(CPU)
    linear = adapt_linears(plain, adapters)
    assert isinstance(linear, AdaptedLinear)
    q, v, k = low_rank(4, 5, 1), low_rank(3, 5, 2, has_gain=True), low_rank(2, 5, 3)
    adapters.add(1, AdapterWeights({"q": q, "v": v}))
    adapters.add(2, AdapterWeights({"k": k, "elsewhere": q}))
    numbers = np.array([1, 0, 2, 1, 0, 2], np.int32)
    adapters.use(numbers)
    found, expected = linear(x, OPS), plain(x, OPS)
    for row, number in enumerate(numbers.tolist()):
        if number == 1:
            expected[row, :4] += 0.7 * (q.b @ (q.a @ x[row]))
            assert v.gain is not None
            expected[row, 6:] = v.gain * (weight[6:] @ x[row] + 0.7 * (v.b @ (v.a @ x[row]))) + bias[6:]
        if number == 2:
            expected[row, 4:6] += 0.7 * (k.b @ (k.a @ x[row]))
    torch.testing.assert_close(found, expected)
    assert torch.equal(found[[1, 4]], plain(x, OPS)[[1, 4]])
    adapters.use(None)
    assert torch.equal(linear(x, OPS), plain(x, OPS))


def test_half_precision_adds_before_it_rounds() -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(8, 16).bfloat16(), torch.randn(2, 16).bfloat16()
    adapters = RowAdapters(CPU)
    linear = adapt_linears(Linear(weight, None, {"q": 8}), adapters)
    part = low_rank(8, 16, 1).map_tensors(torch.Tensor.float)
    adapters.add(1, AdapterWeights({"q": part}))
    adapters.use(np.array([1, 1], np.int32))
    base = torch.nn.functional.linear(x, weight).float()
    expected = (base + 0.7 * (x.float() @ part.a.T @ part.b.T)).bfloat16()
    assert torch.equal(linear(x, OPS), expected)


def test_every_projection_of_a_part_is_adapted_and_nothing_else_is_copied() -> None:
    norm = RMSNorm(torch.ones(4), 1e-6)
    mlp = MLP(Linear(torch.zeros(6, 4), None, {"g": 3, "u": 3}), Linear(torch.zeros(4, 3), None, {"d": 4}), "silu")
    adapted = adapt_linears(mlp, RowAdapters(CPU))
    assert isinstance(adapted.gate_up, AdaptedLinear) and isinstance(adapted.down, AdaptedLinear)
    assert adapted.gate_up.weight is mlp.gate_up.weight and adapted.activation == "silu"
    assert adapt_linears(norm, RowAdapters(CPU)) is norm
    assert adaptable_projections([mlp, norm]) == {"g": (3, 4), "u": (3, 4), "d": (4, 3)}

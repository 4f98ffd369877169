"""GatedRMSNorm: both orders of norm and gate, over heads and over groups."""

import torch
from torch.nn import functional

from chairlift.model.layers.gated_rms_norm import GatedRMSNorm, wide_rms_norm
from chairlift.model.layers.ops import TorchOps

OPS = TorchOps()
x, gate = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_a_head_is_normalised_before_it_is_gated() -> None:
    weight = torch.rand(1, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = GatedRMSNorm(weight, 1e-6, gate_first=False)(x, gate, OPS)
    heads = functional.rms_norm(x.view(5, 3, 4), (4,), weight[0], 1e-6).view(5, 12)
    assert torch.allclose(found, heads * functional.silu(gate), rtol=1e-12)


def test_a_gate_may_be_a_sigmoid() -> None:
    ones = torch.ones(1, 12, dtype=torch.float64)
    found = GatedRMSNorm(ones, 1e-6, gate_first=False, activation="sigmoid")(x, gate, OPS)
    assert torch.allclose(found, functional.rms_norm(x, (12,), None, 1e-6) * gate.sigmoid(), rtol=1e-12)


def test_groups_are_gated_before_they_are_normalised() -> None:
    weight = torch.rand(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = GatedRMSNorm(weight, 1e-5, gate_first=True)(x, gate, OPS)
    gated = (x * functional.silu(gate)).view(5, 2, 6)
    assert torch.allclose(found, (functional.rms_norm(gated, (6,), None, 1e-5) * weight).view(5, 12), rtol=1e-12)


def test_a_gate_of_a_narrower_dtype_is_widened() -> None:
    norm = GatedRMSNorm(torch.ones(1, 12), 1e-6, gate_first=False)
    assert torch.equal(norm(x.float(), gate.bfloat16(), OPS), norm(x.float(), gate.bfloat16().float(), OPS))


def test_float64_is_not_rounded_to_float32() -> None:
    weight = torch.rand(12, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    exact = functional.rms_norm(x, (12,), weight, 1e-6)
    assert torch.allclose(wide_rms_norm(x, weight, 1e-6, OPS), exact, rtol=1e-12)
    narrow = wide_rms_norm(x.float(), weight.float(), 1e-6, OPS)
    assert narrow.dtype == torch.float32 and torch.allclose(narrow.double(), exact, rtol=1e-5)

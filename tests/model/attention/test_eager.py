"""eager_attention: against SDPA for the cases that SDPA supports, and its soft cap and sinks."""

import pytest
import torch
from torch.nn import functional

from chairlift.model.attention.base import AttentionSpec
from chairlift.model.attention.eager import eager_attention


def random_tensor(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64)


@pytest.mark.parametrize("lead", [(), (5,)])
def test_without_cap_and_sinks_it_is_sdpa(lead: tuple[int, ...]) -> None:
    query, key, value = (
        random_tensor(*lead, 2, 3, 4, 8),
        random_tensor(*lead, 2, 1, 6, 8),
        random_tensor(*lead, 2, 1, 6, 8) * 2,
    )
    mask = torch.zeros(4, 6, dtype=torch.float64).masked_fill_(torch.ones(4, 6).triu(3).bool(), -torch.inf)
    spread = (*lead, 2, 3, 6, 8)
    expected = functional.scaled_dot_product_attention(query, key.expand(spread), value.expand(spread), mask, scale=0.4)
    assert torch.allclose(eager_attention(query, key, value, mask, AttentionSpec(0, 0.4)), expected)


def test_a_sink_takes_weight_and_gives_nothing() -> None:
    query, key, value = torch.zeros(1, 2, 1, 4), torch.ones(1, 1, 3, 4), torch.ones(1, 1, 3, 4)
    sinks = torch.tensor([0.0, -torch.inf])
    found = eager_attention(query, key, value, None, AttentionSpec(0, 1.0, sinks=sinks))
    assert found[0, :, 0, 0].tolist() == [0.75, 1.0]


def test_the_mask_comes_after_the_cap() -> None:
    query, key = torch.full((1, 1, 1, 1), 100.0), torch.tensor([100.0, -100.0]).view(1, 1, 2, 1)
    value, mask = torch.tensor([1.0, 5.0]).view(1, 1, 2, 1), torch.tensor([-torch.inf, 0.0])
    assert eager_attention(query, key, value, mask, AttentionSpec(0, 1.0, softcap=3.0)).item() == 5.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_are_computed_wide_and_rounded_once(dtype: torch.dtype) -> None:
    query, key, value = (
        random_tensor(1, 2, 3, 8).to(dtype),
        random_tensor(1, 1, 9, 8).to(dtype),
        random_tensor(1, 1, 9, 8).to(dtype),
    )
    spec = AttentionSpec(0, 1.0, softcap=2.0)
    exact = eager_attention(query.double(), key.double(), value.double(), None, spec)
    found = eager_attention(query, key, value, None, spec)
    assert found.dtype == dtype
    assert torch.allclose(found.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-5)

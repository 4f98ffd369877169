"""Truncation by the whole distribution: the kept tokens, and the independence of rows."""

import numpy as np
import pytest
import torch

from chairlift.model.sampling.entropy_truncation import truncate
from support_sampling import cut_by_entropy, params
from support_shares import for_each


def columns(*rules: float) -> list[torch.Tensor]:
    return [torch.tensor([[rule]], dtype=torch.float64) for rule in rules]


@for_each("seed", range(12))
def test_what_is_kept_is_that_of_the_definitions(seed: int) -> None:
    draw = np.random.default_rng(seed)
    weights = np.where(draw.random(300) < 0.2, 0.0, draw.random(300) ** 6)
    typical, epsilon, eta = draw.uniform(0.1, 1.0), draw.uniform(0, 0.02), draw.uniform(0, 0.02)
    kept = truncate(torch.from_numpy(weights)[None].clone(), *columns(typical, epsilon, eta))[0].numpy()
    chosen = params(typical_p=typical, epsilon_cutoff=epsilon, eta_cutoff=eta)
    assert (kept > 0).tolist() == (cut_by_entropy(weights / weights.sum(), chosen) > 0).tolist()
    assert (kept[kept > 0] == weights[kept > 0]).all()


@pytest.mark.parametrize("rules", [(1e-9, 0.0, 0.0), (1.0, 1.0, 0.0), (1.0, 0.0, 1.0), (1e-9, 1.0, 1.0)])
def test_at_least_one_token_always_stays(rules: tuple[float, float, float]) -> None:
    for weights in ([0.0, 1.0, 0.0], [0.2, 0.3, 0.5], [1e-300, 0.0, 1e-300]):
        assert truncate(torch.tensor([weights], dtype=torch.float64), *columns(*rules)).sum() > 0


def test_neutral_rules_change_nothing() -> None:
    weights = torch.rand(1, 50, dtype=torch.float64)
    assert torch.equal(truncate(weights.clone(), *columns(1.0, 0.0, 0.0)), weights)


def test_a_row_is_cut_the_same_alone_and_beside_others() -> None:
    weights = torch.rand(40, 700, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) ** 8
    rules = [
        torch.rand(40, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) for seed in (2, 3, 4)
    ]
    rules = [rules[0], rules[1] * 0.01, rules[2] * 0.01]
    together = truncate(weights.clone(), *rules)
    for row in range(40):
        alone = truncate(weights[row : row + 1].clone(), *(rule[row : row + 1] for rule in rules))
        assert torch.equal(alone[0], together[row])

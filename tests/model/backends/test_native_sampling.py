"""NativeSamplingOps: tokens, top-k and logsumexp equal torch's for every instruction set and any parameters."""

import random

import numpy as np
import pytest
import torch
from torch import Tensor

from chairlift.model.backends.native_sampling import NativeSamplingOps
from chairlift.model.kernels.cpu.threads import get_thread_pool
from chairlift.model.sampling.sampling_ops import TorchSamplingOps
from chairlift.model.sampling.truncated_sampling import TruncationParams
from support_native import instruction_sets, need_native
from support_sampling import params, probabilities, sequence, token_of

TORCH_OPS = TorchSamplingOps()
every_set = pytest.mark.parametrize("name", instruction_sets())


def native_ops(name: str, threads: int = 2) -> NativeSamplingOps:
    need_native()
    return NativeSamplingOps(get_thread_pool(threads), name)


def rules_of(rows: list[dict[str, float]]) -> TruncationParams:
    rules = TruncationParams.neutral(len(rows))
    for row, chosen in enumerate(rows):
        rules.set(row, params(**chosen))
    return rules


def any_rules(dice: random.Random, vocabulary: int) -> dict[str, float]:
    """Return typical sampling parameters, and some at the ends of their ranges."""
    fields: dict[str, float] = {"temperature": dice.choice([0.01, 0.3, 0.7, 1.0, 1.3, 2.0])}
    if dice.random() < 0.5:
        fields["top_k"] = dice.choice(
            [1, 2, 40, vocabulary - 1, vocabulary, vocabulary + 9, dice.randint(1, vocabulary)]
        )
    if dice.random() < 0.5:
        fields["top_p"] = dice.choice([1e-9, 0.1003, 0.5003, 0.9003, 0.9901, 0.999999])
    if dice.random() < 0.3:
        fields["min_p"] = dice.choice([1e-5, 0.02, 0.3, 1.0])
    return fields


def any_logits(dice: random.Random, rows: int, vocabulary: int) -> Tensor:
    """Return logits of any magnitude: peaked, flat, tied, banned."""
    generator = torch.Generator().manual_seed(dice.randrange(10**9))
    logits = torch.randn(rows, vocabulary, generator=generator) * dice.choice([0.01, 1.0, 4.0, 30.0])
    if dice.random() < 0.3:
        logits = (logits * 2).round() / 2  # many ties
    if dice.random() < 0.3:
        logits[torch.rand(rows, vocabulary, generator=generator) < 0.9] = -torch.inf
        logits[:, dice.randrange(vocabulary)] = 0.25
    return logits + dice.choice([0.0, -50.0, 1e4])


@every_set
def test_any_rules_of_any_rows_draw_what_torch_draws(name: str) -> None:
    dice = random.Random(f"draws {name}")
    for _ in range(60):
        rows, vocabulary = dice.randint(1, 9), dice.choice([1, 2, 63, 64, 65, 1000, dice.randint(1, 3000), 49_152])
        logits = any_logits(dice, rows, vocabulary)
        rules = rules_of([any_rules(dice, vocabulary) for _ in range(rows)])
        numbers = np.array([dice.choice([0.0, 1 - 2**-30, dice.random(), dice.random()]) for _ in range(rows)])
        assert (
            native_ops(name).sample_tokens(logits, rules, numbers).tolist()
            == TORCH_OPS.sample_tokens(logits, rules, numbers).tolist()
        )


@pytest.mark.share(2)
@every_set
@pytest.mark.parametrize("chosen", [{}, {"top_p": 0.8003}, {"top_k": 20, "top_p": 0.9003}, {"min_p": 0.05}], ids=str)
def test_numbers_from_0_to_1_reach_every_token_that_stays(name: str, chosen: dict[str, float]) -> None:
    row = torch.randn(500, generator=torch.Generator().manual_seed(5)) * 2
    numbers = (np.arange(3000) + 0.5) / 3000
    rules = rules_of([{"temperature": 0.9, **chosen}] * len(numbers))
    logits = row.expand(len(numbers), -1)
    found = native_ops(name).sample_tokens(logits, rules, numbers)
    assert found.tolist() == TORCH_OPS.sample_tokens(logits, rules, numbers).tolist()
    assert (np.diff(found) >= 0).all() and len(set(found.tolist())) > 5


@every_set
def test_the_largest_number_draws_a_token_that_stays(name: str) -> None:
    dice = random.Random(f"largest {name}")
    for _ in range(60):
        logits, chosen = any_logits(dice, 1, dice.randint(1, 300)), any_rules(dice, 300)
        (token,) = native_ops(name).sample_tokens(logits, rules_of([chosen]), np.array([1 - 2**-53])).tolist()
        assert probabilities(logits[0].numpy(), sequence(0, params(**chosen)))[token] > 0, chosen


@every_set
def test_ties_of_top_k_beyond_all_that_was_looked_at_count_in_top_p(name: str) -> None:
    logits = torch.full((3, 20_000), -9.0)
    logits[:, 0] = 0.0
    rules = rules_of([{"temperature": 1.0, "top_k": 50, "top_p": 0.9003}] * 3)
    numbers = np.array([0.1, 0.7, 0.99])
    distribution = probabilities(logits[0].numpy(), sequence(0, params(temperature=1.0, top_k=50, top_p=0.9003)))
    expected = [token_of(distribution, number) for number in numbers]
    assert expected[0] == 0 and expected[2] > 10_000
    assert native_ops(name).sample_tokens(logits, rules, numbers).tolist() == expected
    assert TORCH_OPS.sample_tokens(logits, rules, numbers).tolist() == expected


@every_set
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_what_torch_makes_by_default_does_not_matter(name: str, dtype: torch.dtype) -> None:
    logits = torch.randn(3, 700, generator=torch.Generator().manual_seed(4), dtype=torch.float32)
    values, ids = native_ops(name).top_k_tokens(logits, 600)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        again, ids_again = native_ops(name).top_k_tokens(logits, 600)
    finally:
        torch.set_default_dtype(before)
    assert again.equal(values) and ids_again.equal(ids)


@every_set
def test_rows_of_a_wider_table_are_read_where_they_lie(name: str) -> None:
    table = torch.randn(6, 640, generator=torch.Generator().manual_seed(9))
    table[:, 601:] = 99.0
    logits, rules, numbers = table[::2, :601], rules_of([{"temperature": 1.0}] * 3), np.array([0.2, 0.5, 0.9])
    assert (
        native_ops(name).sample_tokens(logits, rules, numbers).tolist()
        == TORCH_OPS.sample_tokens(logits, rules, numbers).tolist()
    )
    assert native_ops(name).top_k_tokens(logits, 3)[1].equal(TORCH_OPS.top_k_tokens(logits, 3)[1])
    max_logits = logits.amax(-1, keepdim=True)
    assert torch.allclose(
        native_ops(name).logsumexp(logits, max_logits), TORCH_OPS.logsumexp(logits, max_logits), rtol=1e-14
    )


def test_a_set_that_is_not_here_is_an_error() -> None:
    with pytest.raises(MemoryError, match=r"failed in sample \(code -2\)"):
        native_ops("avx1024").sample_tokens(torch.zeros(1, 9), rules_of([{"temperature": 1.0}]), np.array([0.5]))


@every_set
def test_a_row_samples_the_same_token_alone_and_in_a_batch_with_any_number_of_threads(name: str) -> None:
    dice = random.Random(f"alone {name}")
    logits = any_logits(dice, 30, 5000)
    rules = rules_of([any_rules(dice, 5000) for _ in range(30)])
    numbers = np.array([dice.random() for _ in range(30)])
    together = native_ops(name).sample_tokens(logits, rules, numbers)
    for threads in (1, 3):
        assert (native_ops(name, threads).sample_tokens(logits, rules, numbers) == together).all()
    for row in range(30):
        at = np.array([row])
        assert native_ops(name).sample_tokens(logits[row : row + 1], rules.take(at), numbers[at])[0] == together[row]


@every_set
def test_rules_of_the_whole_distribution_and_other_logits_are_torchs(name: str) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(6, 300, generator=generator)
    chosen = [{"top_k": 9}, {"typical_p": 0.6}, {}, {"epsilon_cutoff": 0.01}, {"top_p": 0.7}, {"eta_cutoff": 0.02}]
    rules, numbers = rules_of([{"temperature": 1.0, **each} for each in chosen]), np.linspace(0.05, 0.95, 6)
    for some in (logits, logits.double(), logits.t().contiguous().t()):
        assert (
            native_ops(name).sample_tokens(some, rules, numbers).tolist()
            == TORCH_OPS.sample_tokens(some, rules, numbers).tolist()
        )
    wide = logits.double()
    assert native_ops(name).top_k_tokens(wide, 4)[1].tolist() == TORCH_OPS.top_k_tokens(wide, 4)[1].tolist()
    max_logits = wide.amax(-1, keepdim=True)
    assert native_ops(name).logsumexp(wide, max_logits).equal(TORCH_OPS.logsumexp(wide, max_logits))


@pytest.mark.share(1)
@every_set
def test_the_likeliest_come_in_order_and_of_equals_the_lower_id_first(name: str) -> None:
    dice = random.Random(f"likeliest {name}")
    for _ in range(60):
        rows, vocabulary = dice.randint(1, 5), dice.choice([1, 64, 65, 130, dice.randint(1, 4000), 49_152])
        logits = any_logits(dice, rows, vocabulary)
        for count in {0, 1, min(20, vocabulary), dice.randint(1, vocabulary), vocabulary + 3}:
            values, ids = native_ops(name).top_k_tokens(logits, count)
            torch_values, torch_ids = TORCH_OPS.top_k_tokens(logits, count)
            assert values.equal(torch_values) and ids.equal(torch_ids), (vocabulary, count)


@every_set
def test_sums_are_those_of_float64(name: str) -> None:
    dice = random.Random(f"sums {name}")
    for _ in range(40):
        logits = any_logits(dice, dice.randint(1, 5), dice.choice([1, 7, 64, 1001, 20_000]))
        max_logits = logits.amax(-1, keepdim=True)
        exact = (logits.double() - max_logits.double()).exp().sum(-1, keepdim=True).log()
        assert torch.allclose(native_ops(name).logsumexp(logits, max_logits), exact, rtol=1e-14, atol=1e-14)

"""Fixed-point sampling in torch: the tokens of truncated_sampling, from the random numbers of philox.uniforms."""

import numpy as np
import pytest
import torch

from chairlift.model.kernels.sampling_parameter_columns import NUM_COLUMNS, NUM_OUTPUTS, TEMPERATURE
from chairlift.model.sampling.device.fixed_point_sampling import (
    AllowedTokens,
    SampleBuffers,
    philox_bits,
    sample_rows,
    share,
)
from chairlift.model.sampling.philox import uniforms
from chairlift.model.sampling.truncated_sampling import argmax, sample_tokens
from support_chi_square import chi_square_p
from support_device_sampling import CPU, Case, bitmask_of, case_of, random_case, rules_of
from support_sampling import params, probabilities, sequence
from support_shares import FULL


def tokens_of(case: Case) -> list[int]:
    buffers = case.buffers
    sample_rows(case.logits, case.slots, case.table(), buffers)
    return buffers.tokens.tolist()


def test_random_bits_are_those_of_uniforms() -> None:
    case = random_case(500, 2, 0)
    table = case.table()[:-1]
    bits = philox_bits(table[:, 4], table[:, 5], table[:, 6])
    assert (bits.numpy() * 2.0**-53 == case.numbers).all()
    ends = [
        np.array(column, np.int64) for column in ([-(2**63), 2**63 - 1, 0, -1], [0, 127, 2**40, 1], [0, 2**62, 1, 2])
    ]
    assert (philox_bits(*map(torch.from_numpy, ends)).numpy() * 2.0**-53 == uniforms(*ends)).all()


def test_a_share_of_a_total_is_exact() -> None:
    rng = np.random.default_rng(1)
    bits = [0, 1, 2**53 - 1, 2**27, 2**27 - 1, *rng.integers(0, 2**53, 300).tolist()]
    drawn = [int(total) >> int(rng.integers(61)) | 1 for total in rng.integers(1, 2**62, 300)]
    totals = [1, 2**62 - 1, 2**31, 2**31 - 1, 2**44, *drawn]
    shares = share(torch.tensor(bits)[:, None], torch.tensor(totals)[None])
    assert shares.tolist() == [[each * total >> 53 for total in totals] for each in bits]


@pytest.mark.share(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("vocab_size", "levels"), [(2, 0), (50, 0), (50, 2), (700, 0), (700, 1), (3000, 30)])
def test_tokens_are_those_of_truncated_sampling(vocab_size: int, levels: int, dtype: torch.dtype) -> None:
    for seed in range(20 if FULL else 2):
        case = random_case(300, vocab_size, seed, dtype=dtype, levels=levels)
        assert tokens_of(case) == case.expected()


def test_a_large_vocabulary_has_the_same_tokens() -> None:
    case = random_case(12, 151_936, 5)
    assert tokens_of(case) == case.expected()


def test_equal_logits_are_kept_by_ascending_id() -> None:
    count = 400
    for chosen, kept in (({"top_p": 0.3}, 30), ({"top_p": 0.305}, 31), ({"top_k": 7}, 100), ({"min_p": 1.0}, 100)):
        case = case_of(torch.zeros(count, 100), rules_of(count, **chosen), kept)
        tokens = tokens_of(case)
        assert tokens == case.expected()
        assert set(tokens) <= set(range(kept)) and max(tokens) > 0.9 * kept - 1


def test_the_distribution_is_that_of_the_rules() -> None:
    row = torch.randn(1, 30, generator=torch.Generator().manual_seed(2)) * 2
    for index, chosen in enumerate(
        ({}, {"temperature": 0.5}, {"top_k": 6}, {"top_p": 0.8}, {"top_k": 9, "top_p": 0.9, "min_p": 0.05})
    ):
        count = 20_000
        case = case_of(row.expand(count, -1), rules_of(count, **chosen), index)
        counts = np.bincount(tokens_of(case), minlength=30)
        likely = probabilities(row[0].numpy(), sequence(0, params(**{"temperature": 1.0, **chosen})))
        assert chi_square_p(counts, likely * count) > 1e-4


def test_temperature_0_and_rows_that_are_not_finite_give_the_largest() -> None:
    logits = torch.randint(0, 9, (40, 500), generator=torch.Generator().manual_seed(1)).float()
    logits[3] = -torch.inf
    logits[4, 77] = torch.nan
    logits[5, 78] = torch.inf
    case = case_of(logits, rules_of(40))
    table, buffers = case.table(), case.buffers
    table[6:, TEMPERATURE] = 0
    sample_rows(logits, case.slots, table, buffers)
    max_logits, ids = argmax(logits)
    assert buffers.tokens[3:].tolist() == ids[3:].tolist()
    np.testing.assert_array_equal(buffers.max_logits.numpy(), np.stack([max_logits, max_logits], 1))


def test_rows_without_a_slot_write_nothing_that_counts() -> None:
    case = random_case(6, 50, 3)
    table, buffers = case.table(), SampleBuffers.empty(8, 6, CPU)
    slots = torch.tensor([5, -1, 2, -1, 0, -1], dtype=torch.int32)
    before = table.clone()
    sample_rows(case.logits[[5, 1, 2, 3, 0, 4]], slots, table, buffers)
    expected = case.expected()
    assert buffers.tokens.tolist() == [expected[5], 0, expected[2], 0, expected[0], 0, 0, 0]
    assert buffers.last_sampled[:6].tolist() == [expected[0], 0, expected[2], 0, 0, expected[5]]
    assert (table[:6, NUM_OUTPUTS] - before[:6, NUM_OUTPUTS]).tolist() == [1, 0, 1, 0, 0, 1]
    assert table.shape == (7, NUM_COLUMNS)


def test_a_mask_bans_tokens_of_its_row_alone() -> None:
    case = random_case(60, 70, 4)
    is_allowed = np.random.default_rng(4).uniform(size=(30, 70)) < 0.3
    is_allowed[7] = False
    is_allowed[8] = np.arange(70) == 41
    mask_rows = torch.full((60,), -1, dtype=torch.int32)
    mask_rows[::2] = torch.randperm(30, generator=torch.Generator().manual_seed(1)).int()
    allowed = AllowedTokens(bitmask_of(is_allowed), mask_rows)
    buffers = case.buffers
    sample_rows(case.logits, case.slots, case.table(), buffers, allowed)
    masked = case.logits.clone()
    masked[::2] = masked[::2].masked_fill(torch.from_numpy(~is_allowed[mask_rows[::2].numpy()]), -torch.inf)
    peaks, ids = argmax(masked)
    usable = np.isfinite(peaks)
    assert 50 < usable.sum() < 60
    expected = ids.copy()
    expected[usable] = sample_tokens(masked[usable], case.rules.take(np.flatnonzero(usable)), case.numbers[usable])
    assert buffers.tokens.tolist() == expected.tolist()
    np.testing.assert_array_equal(buffers.max_logits.numpy(), np.stack([argmax(case.logits)[0], peaks], 1))

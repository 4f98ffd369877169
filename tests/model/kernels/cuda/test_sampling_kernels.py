"""The sampling kernel by the interpreter: the tokens of truncated_sampling and of its reference in torch."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from chairlift.model.kernels import sampling_parameter_columns
from chairlift.model.kernels.cuda import sampling_kernels
from chairlift.model.kernels.cuda.sampling_kernels import launch_constants, philox_bits, variants
from chairlift.model.kernels.sampling_parameter_columns import TEMPERATURE
from chairlift.model.sampling.device import fixed_point_sampling
from chairlift.model.sampling.device.fixed_point_sampling import AllowedTokens
from chairlift.model.sampling.device.triton_sampling import sample_rows
from support_chi_square import chi_square_p
from support_device_sampling import Case, bitmask_of, case_of, random_case, rules_of
from support_sampling import params, probabilities, sequence
from support_shares import FULL

MORE = 10 if FULL else 1


def tokens_of(case: Case, allowed: AllowedTokens | None = None) -> list[int]:
    """Sample with the kernel, and check that it writes what the reference writes."""
    table, buffers, expected_table, expected = case.table(), case.buffers, case.table(), case.buffers
    sample_rows(case.logits, case.slots, table, buffers, allowed)
    fixed_point_sampling.sample_rows(case.logits, case.slots, expected_table, expected, allowed)
    assert table.equal(expected_table)
    np.testing.assert_array_equal(buffers.max_logits.numpy(), expected.max_logits.numpy())
    assert buffers.tokens.tolist() == expected.tokens.tolist()
    assert buffers.last_sampled.equal(expected.last_sampled)
    return buffers.tokens.tolist()


@triton.jit
def bits_kernel(keys, bits, SIZE: tl.constexpr):  # noqa: N803
    rows = tl.arange(0, SIZE)
    seed, choice, position = tl.load(keys + rows), tl.load(keys + SIZE + rows), tl.load(keys + 2 * SIZE + rows)
    tl.store(bits + rows, philox_bits(seed, choice, position))


def test_random_bits_are_those_of_uniforms() -> None:
    case = random_case(512, 2, 1)
    bits = torch.zeros(512, dtype=torch.int64)
    bits_kernel[(1,)](torch.from_numpy(np.concatenate([case.seeds, case.choices, case.positions])), bits, SIZE=512)
    assert (bits.numpy() * 2.0**-53 == case.numbers).all()


@pytest.mark.share(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("vocab_size", "levels"), [(50, 0), (300, 2), (300, 0)])
def test_tokens_are_those_of_truncated_sampling(vocab_size: int, levels: int, dtype: torch.dtype) -> None:
    case = random_case(12 * MORE, vocab_size, 7, dtype=dtype, levels=levels)
    assert tokens_of(case) == case.expected()


@pytest.mark.full
@pytest.mark.parametrize("levels", [0, 1])
def test_rows_of_several_blocks(levels: int) -> None:
    case = random_case(8 * MORE, 3000, 8, levels=levels)
    assert tokens_of(case) == case.expected()


@pytest.mark.full
def test_blocks_of_any_size_give_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    case = random_case(4 * MORE, 500, 9)
    expected = case.expected()
    for block in (128, 256):
        monkeypatch.setattr(sampling_kernels, "MAX_BLOCK", block)
        assert launch_constants(500)["BLOCK"] == block
        assert tokens_of(case) == expected


@pytest.mark.full
def test_equal_logits_are_kept_by_ascending_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling_kernels, "MAX_BLOCK", 128)
    chosen = {"top_p": [0.3, 0.305, 1e-9, 1, 1, 0.99999], "top_k": [0, 0, 0, 7, 0, 0], "min_p": [0, 0, 0, 0, 1, 0]}
    three_levels = torch.zeros(6, 400)
    three_levels[:, ::3] = 1.0
    three_levels[:, 200:] = -1.0
    for logits in (torch.zeros(6, 400), three_levels):
        case = case_of(logits, rules_of(6, **chosen), 3)
        assert tokens_of(case) == case.expected()


def test_the_ends_of_the_unit_interval_give_kept_tokens() -> None:
    chosen = {"top_k": [0, 3, 0, 0], "top_p": [1, 1, 0.99999, 1], "min_p": [0, 0, 0, 0.01]}
    logits = torch.tensor([-torch.inf, 0.0, -torch.inf, 1.0, -torch.inf]).expand(4, -1).contiguous()
    for bits, token in ((0, 1), (2**53 - 1, 3)):
        case = case_of(logits, rules_of(4, **chosen))
        table, buffers = case.table(), case.buffers
        table[:, sampling_parameter_columns.SEED] = bits
        sample_rows(logits, case.slots, table, buffers, is_keyed=False)
        assert buffers.tokens.tolist() == [token] * 4


@pytest.mark.full
def test_a_search_ends_with_extreme_logits() -> None:
    logits = torch.randn(8, 200, generator=torch.Generator().manual_seed(5))
    logits[1] *= 1e-30
    logits[2] *= 1e37
    logits[3, 10:] = -3e38
    logits[4] = torch.where(logits[4] > 0, 3e38, -3e38)
    logits[5] = -3.4e38
    logits[6] = torch.tensor([0.0, -0.0]).repeat(100)
    logits[7, 1:] = -torch.inf
    rules = rules_of(8, temperature=[1, 1, 1, 2, 2, 2, 1, 1], top_p=0.6003, top_k=[9, 9, 0, 0, 9, 9, 9, 9])
    case = case_of(logits, rules)
    assert tokens_of(case) == case.expected()


@pytest.mark.full
def test_the_distribution_is_that_of_the_rules() -> None:
    count = 100 * MORE
    row = torch.tensor([[1.0, -0.5, 0.3, 2.0, 0.9, -1.0, 1.5]])
    case = case_of(row.expand(count, -1), rules_of(count, temperature=1.5, min_p=0.1), 6)
    counts = np.bincount(tokens_of(case), minlength=7)
    likely = probabilities(row[0].numpy(), sequence(0, params(temperature=1.5, min_p=0.1)))
    assert chi_square_p(counts, likely * count) > 1e-4


def test_greedy_rows_and_rows_that_are_not_finite_give_the_largest() -> None:
    logits = torch.randint(0, 9, (14, 300), generator=torch.Generator().manual_seed(1)).float()
    logits[0] = -torch.inf
    logits[1, 77] = torch.nan
    logits[2, 78] = torch.inf
    logits[3, [80, 90]] = torch.tensor([torch.inf, torch.nan])
    logits[4] = torch.tensor([-0.0, 0.0, -1.0]).repeat(100)
    case = case_of(logits, rules_of(14, temperature=[1.0] * 4 + [0.0] * 10))
    assert tokens_of(case) == logits.numpy().argmax(-1).tolist()
    assert (case.table()[4:-1, TEMPERATURE] == 0).all()


def test_a_mask_bans_tokens_of_its_row_alone() -> None:
    logits = torch.randn(12, 150, generator=torch.Generator().manual_seed(4))
    case = case_of(logits, random_case(12, 150, 4).rules)
    is_allowed = np.random.default_rng(4).uniform(size=(4, 150)) < 0.3
    is_allowed[2] = False
    is_allowed[3] = np.arange(150) == 141
    mask_rows = torch.tensor([3, 2, 1, 0, -1, -1, -1, -1, 0, 1, 2, 3], dtype=torch.int32)
    # A NaN that the mask bans is reported as the model's.
    logits[8, int(np.flatnonzero(~is_allowed[0])[0])] = torch.nan
    tokens = tokens_of(case, AllowedTokens(bitmask_of(is_allowed), mask_rows))
    assert tokens[0] == tokens[11] == 141
    assert all(is_allowed[mask_rows[row], tokens[row]] for row in (2, 3, 8, 9))
    assert tokens[4:8] == case.at(np.arange(4, 8)).expected()


def test_launches_for_the_check_of_compilation_have_their_own_names() -> None:
    names = [variant.name for variant in variants()]
    assert len(set(names)) == len(names) == 9

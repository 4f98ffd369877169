"""The likeliest tokens of a row are collected, and the searches read these alone where that is enough."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor
from triton.runtime.interpreter import interpreter_builder

from chairlift.model.kernels import sampling_parameter_columns
from chairlift.model.kernels.cuda import sampling_kernels
from chairlift.model.kernels.cuda.sampling_search import collect, key_bound
from chairlift.model.sampling.device import fixed_point_sampling
from chairlift.model.sampling.device.fixed_point_sampling import AllowedTokens
from chairlift.model.sampling.device.triton_sampling import sample_rows
from chairlift.model.sampling.truncated_sampling import TruncationParams
from support_device_sampling import Case, bitmask_of, case_of, rules_of
from support_shares import FULL

BLOCK = 128
NUM_IDS = 1000
NUM_BLOCKS = 8

CountReads = Callable[[Case], int]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling_kernels, "MAX_BLOCK", BLOCK)


@pytest.fixture
def count_reads(monkeypatch: pytest.MonkeyPatch) -> CountReads:
    """Return a function that samples a case of one row and returns how many blocks of its logits were read."""

    def count(case: Case) -> int:
        assert len(case.logits) == 1
        begin = case.logits.data_ptr()
        addresses: list[int] = []
        load = interpreter_builder.create_masked_load

        def record(pointers: Any, mask: Any, *args: Any) -> Any:
            if mask.data.any():  # else the addresses may lie anywhere
                addresses.append(int(pointers.data.flat[0]))
            return load(pointers, mask, *args)

        with monkeypatch.context() as patch:
            patch.setattr(interpreter_builder, "create_masked_load", record)
            check_tokens(case)
        return sum(begin <= address < begin + case.logits.nbytes for address in addresses)

    return count


def check_tokens(case: Case, allowed: AllowedTokens | None = None) -> None:
    """Sample; check that the tokens are those of the reference, and without a mask those of truncated_sampling."""
    buffers, expected = case.buffers, case.buffers
    sample_rows(case.logits, case.slots, case.table(), buffers, allowed)
    fixed_point_sampling.sample_rows(case.logits, case.slots, case.table(), expected, allowed)
    assert buffers.tokens.tolist() == expected.tokens.tolist()
    if allowed is None:
        assert buffers.tokens.tolist() == case.expected()


def check_numbers(logits: Tensor, rules: TruncationParams, is_allowed: NDArray[np.bool_] | None = None) -> None:
    """Sample one row with random numbers from 0 to nearly 1; check that the tokens are those of the reference."""
    bits = torch.tensor([0, 2**51, 2**52, 2**53 - 1])
    rows = logits.expand(len(bits), -1).contiguous()
    case = case_of(rows, rules)
    table, buffers, allowed = case.table(), case.buffers, None
    table[:-1, sampling_parameter_columns.SEED] = bits
    if is_allowed is not None:
        allowed = AllowedTokens(bitmask_of(is_allowed[None]), torch.zeros(len(bits), dtype=torch.int32))
        rows = rows.masked_fill(~torch.from_numpy(is_allowed), -torch.inf)
    sample_rows(case.logits, case.slots, table, buffers, allowed, is_keyed=False)
    assert buffers.tokens.tolist() == fixed_point_sampling.sample_by_bits(rows, table[:-1], bits).tolist()


def normal_logits(rows: int, scale: float = 3.0, seed: int = 1) -> Tensor:
    return torch.randn(rows, NUM_IDS, generator=torch.Generator().manual_seed(seed)) * scale


# -- the functions ---------------------------------------------------------------------------------------------------


@triton.jit
def bound_kernel(keys, rank, least, bound, SIZE: tl.constexpr):  # noqa: N803
    tl.store(bound, key_bound(tl.load(keys + tl.arange(0, SIZE)), rank, tl.load(least)))


@triton.jit
def collect_kernel(logits, num_ids, bitmask, num_masked, bound, values, ids, count, SIZE: tl.constexpr):  # noqa: N803
    tl.store(count, collect(logits, num_ids, bitmask, num_masked, bound, values, ids, SIZE))


def float_key(value: float) -> int:
    bits = int(np.float32(value).view(np.int32))
    return bits ^ 0x7FFFFFFF if bits < 0 else bits


@pytest.mark.share(1)
@pytest.mark.parametrize("rank", [1, 2, 17, 64, 128])
@pytest.mark.parametrize("num_values", [1, 5, 10**6, 2**31])
def test_the_bound_is_the_key_of_its_rank(rank: int, num_values: int) -> None:
    rng = np.random.default_rng(rank)
    keys = rng.integers(-min(num_values, 2**31 - 1), num_values, BLOCK).astype(np.int32)
    keys[rng.integers(BLOCK)] = 0x7F000000
    for least in (-np.inf, -3e38, 0.0, 2.5):
        bound = torch.zeros(1, dtype=torch.int32)
        bound_kernel[(1,)](torch.from_numpy(keys), rank, torch.tensor([least]), bound, SIZE=BLOCK)
        floor = max(float_key(least), float_key(-np.inf) + 1)
        assert int(bound[0]) == max(int(np.sort(keys)[-rank]), floor)


@pytest.mark.share(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bound", [2.0, 0.5, -1.0])
def test_collected_tokens_are_in_order_and_never_more_than_a_block(bound: float, dtype: torch.dtype) -> None:
    logits = normal_logits(1, 1.0)[0].to(dtype)
    is_allowed = np.random.default_rng(2).uniform(size=(1, NUM_IDS)) < 0.9
    for num_masked in (0, NUM_IDS):
        values, ids = torch.full((BLOCK + 8,), 77.0, dtype=dtype), torch.full((BLOCK + 8,), 77, dtype=torch.int32)
        count = torch.zeros(1, dtype=torch.int32)
        collect_kernel[(1,)](
            logits, NUM_IDS, bitmask_of(is_allowed), num_masked, float_key(bound), values, ids, count, SIZE=BLOCK
        )
        expected = np.flatnonzero((logits.float().numpy() >= bound) & (is_allowed[0] | (num_masked == 0)))
        assert count == len(expected)
        number = min(len(expected), BLOCK)
        assert ids[:number].tolist() == expected[:BLOCK].tolist()
        assert values[:number].equal(logits[ids[:number].long()])
        assert (values[number:BLOCK] == -torch.inf).all()
        assert (values[BLOCK:] == 77).all() and (ids[BLOCK:] == 77).all()


# -- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.share(2)
@pytest.mark.parametrize("seed", range(20 if FULL else 2))
@pytest.mark.parametrize("levels", [0, 2])
def test_tokens_do_not_depend_on_what_is_collected(levels: int, seed: int) -> None:
    count = 12 if FULL else 2
    logits = normal_logits(count, 1.0, seed) * torch.tensor([0.1, 1, 3, 9]).repeat(3)[:count, None]
    if levels:
        logits = (logits * levels).round() / levels
    rng = np.random.default_rng(seed)
    rules = rules_of(
        count, temperature=rng.choice([1e-3, 0.7, 1, 2, 100], count),
        top_k=rng.choice([0, 1, 5, 64, 65, 400, 999], count), top_p=rng.choice([1, 0.1, 0.9, 0.999], count),
        min_p=rng.choice([0, 0, 0.01], count),
    )  # fmt: skip
    check_tokens(case_of(logits, rules, seed))


@pytest.mark.full
def test_tokens_of_masks_that_allow_few_or_many() -> None:
    rng = np.random.default_rng(3)
    is_allowed = rng.uniform(size=(4, NUM_IDS)) < np.array([0.001, 0.05, 0.5, 0.95])[:, None]
    is_allowed[0, 7] = True
    rules = rules_of(12, top_k=[20, 20, 3, 20, 0, 0, 0, 0, 64, 64, 64, 64], top_p=[1, 1, 0.9] + [0.95] * 9)
    mask_rows = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, -1], dtype=torch.int32)
    check_tokens(case_of(normal_logits(12), rules, 4), AllowedTokens(bitmask_of(is_allowed), mask_rows))


@pytest.mark.full
def test_equal_logits_at_the_bound_are_all_collected_or_none() -> None:
    few_equal = torch.zeros(1, NUM_IDS)
    few_equal[0, ::90] = 1.0
    many_equal = torch.zeros(1, NUM_IDS)
    many_equal[0, 3::7] = 1.0
    for logits in (few_equal, many_equal, torch.zeros(1, NUM_IDS)):
        rules = rules_of(4, top_k=[4, 0, 4, 0], top_p=[1, 0.02, 0.5, 0.9])
        check_tokens(case_of(logits.expand(4, -1).contiguous(), rules, 5))


@pytest.mark.full
def test_the_bound_counts_no_banned_tokens() -> None:
    is_allowed = np.random.default_rng(6).uniform(size=NUM_IDS) < 0.5
    check_numbers(normal_logits(1), rules_of(4, top_k=20), is_allowed)


@pytest.mark.full
@pytest.mark.parametrize("num_equal", [BLOCK, BLOCK + 1])
def test_a_block_of_tokens_is_collected_and_one_more_is_not(num_equal: int, count_reads: CountReads) -> None:
    logits = torch.zeros(1, NUM_IDS)
    logits[0, torch.arange(num_equal) * 7] = 1.0
    check_numbers(logits, rules_of(4, top_k=4))
    num_reads = count_reads(case_of(logits, rules_of(1, top_k=4)))
    assert (num_reads == 2 * NUM_BLOCKS) == (num_equal == BLOCK)


@pytest.mark.full
def test_collected_tokens_that_weigh_less_than_top_p_are_not_all_that_is_kept() -> None:
    logits = normal_logits(1, 1.5)
    for top_p in (0.5, 0.57, 0.7, 0.9):  # those collected weigh 0.55
        check_numbers(logits, rules_of(4, top_p=top_p))


@pytest.mark.full
def test_rows_write_to_memory_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses: list[int] = []
    store = interpreter_builder.create_masked_store

    def record(pointers: Any, values: Any, mask: Any, *args: Any) -> Any:
        addresses.extend(pointers.data[mask.data].tolist())
        return store(pointers, values, mask, *args)

    monkeypatch.setattr(interpreter_builder, "create_masked_store", record)
    check_tokens(case_of(normal_logits(3), rules_of(3, top_k=[0, 20, 30], top_p=[0.5, 1, 1]), 7))
    assert len(addresses) > 3 * BLOCK
    assert len(set(addresses)) == len(addresses)


@pytest.mark.share(1)
@pytest.mark.parametrize("chosen", [{"top_k": 20}, {"top_k": 20, "top_p": 0.95}, {"top_k": 64, "top_p": 0.5}])
def test_a_row_with_a_small_top_k_is_read_twice(chosen: dict[str, float], count_reads: CountReads) -> None:
    assert count_reads(case_of(normal_logits(1), rules_of(1, **chosen))) == 2 * NUM_BLOCKS


@pytest.mark.full
def test_a_row_with_top_p_is_read_three_times_unless_it_is_flat(count_reads: CountReads) -> None:
    rules = rules_of(1, top_p=0.95)
    assert count_reads(case_of(normal_logits(1, 4.0), rules)) == 3 * NUM_BLOCKS
    assert count_reads(case_of(normal_logits(1, 0.1), rules)) > 8 * NUM_BLOCKS


@pytest.mark.full
@pytest.mark.parametrize("chosen", [{"top_k": 65}, {"top_k": 400}])
def test_a_large_top_k_collects_nothing(chosen: dict[str, float], count_reads: CountReads) -> None:
    assert count_reads(case_of(normal_logits(1), rules_of(1, **chosen))) > 4 * NUM_BLOCKS


def test_a_row_without_truncation_is_read_twice_and_the_block_of_its_sample_once_more(count_reads: CountReads) -> None:
    for chosen in ({}, {"min_p": 0.1}):
        assert count_reads(case_of(normal_logits(1), rules_of(1, **chosen))) == 2 * NUM_BLOCKS + 1

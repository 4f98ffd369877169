"""TritonSamplingOps by the interpreter against torch, and rows without a slot in a launch."""

import numpy as np
import pytest
import torch

from chairlift.model.kernels.sampling_parameter_columns import NUM_OUTPUTS
from chairlift.model.sampling.device import fixed_point_sampling
from chairlift.model.sampling.device.fixed_point_sampling import AllowedTokens, SampleBuffers
from chairlift.model.sampling.device.triton_sampling import TritonSamplingOps, sample_rows
from chairlift.model.sampling.sampler import Sampler
from chairlift.model.sampling.sampling_ops import SamplingOps, TorchSamplingOps
from support_device_sampling import CPU, random_case, rules_of
from support_sampling import head_of, params, sequence

TRITON_OPS: SamplingOps = TritonSamplingOps()
TORCH_OPS: SamplingOps = TorchSamplingOps()


def test_tokens_are_those_of_torch() -> None:
    case = random_case(12, 60, 1)
    tokens = TRITON_OPS.sample_tokens(case.logits, case.rules, case.numbers)
    assert tokens.dtype == np.int64
    assert tokens.tolist() == TORCH_OPS.sample_tokens(case.logits, case.rules, case.numbers).tolist()


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rules_of_the_whole_distribution_and_float64_are_torchs(dtype: torch.dtype) -> None:
    logits = torch.randn(5, 90, generator=torch.Generator().manual_seed(3)).to(dtype)
    rules = rules_of(
        5, top_k=[9, 0, 0, 0, 0], typical_p=[1, 0.6, 1, 1, 1], epsilon=[0, 0, 0.01, 0, 0], eta=[0] * 4 + [0.02]
    )
    numbers = np.linspace(0.05, 0.95, 5)
    for some in (logits, logits.t().contiguous().t()):
        for rows in (np.arange(5), np.array([1, 2]), np.array([0, 3])):
            arguments = some[rows], rules.take(rows), numbers[rows]
            assert TRITON_OPS.sample_tokens(*arguments).tolist() == TORCH_OPS.sample_tokens(*arguments).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_sums_and_the_likeliest_are_torchs(dtype: torch.dtype) -> None:
    logits = (torch.randn(3, 1300, generator=torch.Generator().manual_seed(4)) * 5).to(dtype)
    logits[1, 9:] = -torch.inf
    max_logits = logits.amax(-1, keepdim=True)
    for some in (logits, logits.t().contiguous().t()):
        sums = TRITON_OPS.logsumexp(some, max_logits)
        assert sums.dtype == torch.float64 and sums.shape == (3, 1)
        torch.testing.assert_close(sums, TORCH_OPS.logsumexp(logits, max_logits), rtol=1e-13, atol=1e-13)
        for mine, right in zip(TRITON_OPS.top_k_tokens(some, 7), TORCH_OPS.top_k_tokens(logits, 7), strict=True):
            assert mine.equal(right)


def test_no_rows_give_no_tokens() -> None:
    empty, rules = torch.empty(0, 50), rules_of(0)
    assert TRITON_OPS.sample_tokens(empty, rules, np.empty(0)).shape == (0,)
    assert TRITON_OPS.logsumexp(empty, torch.empty(0, 1)).shape == (0, 1)


def test_a_sampler_gives_the_same_tokens_and_logprobs() -> None:
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(5)) * 3
    outputs = []
    for sampling_ops in (TRITON_OPS, TORCH_OPS):
        sampler = Sampler(3, 40, sampling_ops=sampling_ops)
        for slot, chosen in enumerate(({"temperature": 0.8, "logprobs": 2}, {"temperature": 0.0}, {"top_p": 0.7})):
            sampler.add_sequence(sequence(slot, params(**{"temperature": 1.0, **chosen})))
        outputs.append(sampler.sample(head_of(logits), np.arange(3)))
    mine, right = outputs
    assert mine.tokens.tolist() == right.tokens.tolist()
    assert mine.logprobs[0] is not None and right.logprobs[0] is not None
    assert mine.logprobs[0].token_id == right.logprobs[0].token_id
    assert mine.logprobs[0].logprob == pytest.approx(right.logprobs[0].logprob, rel=1e-12)


def test_rows_without_a_slot_write_nothing_that_counts() -> None:
    case = random_case(6, 50, 3)
    results = []
    for sample in (sample_rows, fixed_point_sampling.sample_rows):
        table, buffers = case.table(), SampleBuffers.empty(8, 6, CPU)
        slots = torch.tensor([5, -1, 2, -1, 0, -1], dtype=torch.int32)
        sample(case.logits[[5, 1, 2, 3, 0, 4]], slots, table, buffers)
        results.append((buffers.tokens.tolist(), buffers.last_sampled[:6].tolist(), table[:6, NUM_OUTPUTS].tolist()))
    assert results[0] == results[1]
    assert results[0][1] == [case.expected()[0], 0, case.expected()[2], 0, 0, case.expected()[5]]


@pytest.mark.full
def test_logits_and_masks_of_any_strides_give_the_same_tokens() -> None:
    case = random_case(4, 70, 8)
    bits = torch.randint(1, 2**31 - 1, (4, 3), dtype=torch.int32, generator=torch.Generator().manual_seed(1))
    found = []
    for logits, bitmask in ((case.logits, bits), (case.logits.T.contiguous().T, bits.T.contiguous().T)):
        buffers = case.buffers
        allowed = AllowedTokens(bitmask, torch.tensor([0, -1, 2, 3], dtype=torch.int32))
        sample_rows(logits, case.slots, case.table(), buffers, allowed)
        found.append(buffers.tokens.tolist())
    assert found[0] == found[1]


@pytest.mark.full
def test_a_row_has_the_same_token_alone_and_in_a_wider_table_of_logits() -> None:
    case = random_case(6, 61, 6)
    together = case.buffers
    wide = torch.full((12, 64), 99.0)
    wide[::2, :61] = case.logits
    sample_rows(wide[::2, :61], case.slots, case.table(), together)
    for row in range(6):
        alone = case.at(np.array([row]))
        buffers = alone.buffers
        sample_rows(alone.logits, alone.slots, alone.table(), buffers)
        assert buffers.tokens[0] == together.tokens[row]

"""DeviceSampler: the tokens of the Sampler through many steps, with slots that come, wait and are replaced."""

import numpy as np
import pytest
import torch

from chairlift.core.sampling_params import SamplingParams
from chairlift.model.sampling.device.device_sampling import DeviceSampler
from chairlift.model.sampling.device.fixed_point_sampling import AllowedTokens
from chairlift.model.sampling.sampler import Sampler
from support_device_sampling import CPU
from support_sampling import head_of, masks_of, params, sequence

VOCAB = 40
SLOTS = 6


def drawn_params(rng: np.random.Generator) -> SamplingParams:
    return params(
        seed=int(rng.integers(-(2**62), 2**62)), temperature=float(rng.choice([0.0, 1e-6, 0.5, 1.0, 2.0])),
        top_k=int(rng.choice([0, -1, 1, 5])), top_p=float(rng.choice([1.0, 0.7003])),
        min_p=float(rng.choice([0.0, 0.1003])),
    )  # fmt: skip


@pytest.mark.share(1)
@pytest.mark.parametrize(("use_triton", "num_steps"), [(False, 60), (None, 20), (True, 6)])
def test_tokens_are_those_of_the_sampler(use_triton: bool | None, num_steps: int) -> None:
    rng = np.random.default_rng(num_steps)
    sampler = Sampler(SLOTS, VOCAB)
    device_sampler = DeviceSampler(SLOTS, SLOTS + 2, CPU, use_triton=use_triton)
    for step in range(num_steps):
        added = np.flatnonzero(rng.uniform(size=SLOTS) < 0.2) if step else np.arange(SLOTS)
        new = [
            sequence(
                int(slot), drawn_params(rng), outputs=(7,) * int(rng.integers(9)), choice_index=int(rng.integers(3))
            )
            for slot in added
        ]
        device_sampler.add_sequences(new)
        for each in new:
            sampler.add_sequence(each)
        slots = rng.permutation(SLOTS)[: rng.integers(1, SLOTS + 1)]
        logits = torch.from_numpy(rng.normal(size=(len(slots) + 2, VOCAB)) * 2).float()
        allowed = set(rng.integers(0, VOCAB, 9).tolist())
        masks = masks_of(VOCAB, {0: allowed}) if step % 2 else None
        mask_rows = torch.tensor([0] + [-1] * (len(slots) + 1), dtype=torch.int32)
        device_sampler.sample(
            logits, torch.tensor([*slots, -1, -1], dtype=torch.int32),
            None if masks is None else AllowedTokens(torch.from_numpy(masks.bitmask), mask_rows),
        )  # fmt: skip
        expected = sampler.sample(head_of(logits[: len(slots)]), slots, masks).tokens.tolist()
        assert device_sampler.buffers.tokens[: len(slots)].tolist() == expected
        assert device_sampler.buffers.last_sampled[torch.from_numpy(slots)].tolist() == expected


def test_no_sequences_change_nothing() -> None:
    device_sampler = DeviceSampler(2, 2, CPU)
    before = device_sampler.table.clone()
    device_sampler.add_sequences([])
    assert device_sampler.table.equal(before)


@pytest.mark.parametrize(
    ("chosen", "can_sample"),
    [
        ({"temperature": 1.0}, True), ({"temperature": 0.0, "top_k": 3, "top_p": 0.5, "min_p": 0.1}, True),
        ({"logprobs": 0}, False), ({"typical_p": 0.5}, False), ({"epsilon_cutoff": 0.1}, False),
        ({"eta_cutoff": 0.1}, False), ({"repetition_penalty": 1.1}, False), ({"logit_bias": {3: 1.0}}, False),
        ({"min_tokens": 2}, False), ({"bad_words_ids": ((3,),)}, False),
    ],
)  # fmt: skip
def test_requests_that_need_more_than_a_token_are_not_for_it(chosen: dict[str, object], can_sample: bool) -> None:
    assert DeviceSampler.can_sample(params(**chosen)) is can_sample


def test_a_step_makes_no_sync_and_reads_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    device_sampler = DeviceSampler(2, 2, CPU)
    device_sampler.add_sequences([sequence(0, params(temperature=1.0, top_k=3)), sequence(1, params(temperature=0.0))])
    logits, slots = torch.zeros(2, VOCAB), torch.tensor([0, 1], dtype=torch.int32)

    def refuse(*_: object) -> None:
        raise AssertionError("the host reads a value of the device")

    for name in ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    device_sampler.sample(logits, slots)

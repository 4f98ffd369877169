"""CausalConvolution: the convolution of whole sequences, states at each cut, rows mixed in a step."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from chairlift.model.batch.state_step import StateStep
from chairlift.model.layers.causal_convolution import CausalConvolution
from support_shares import for_each
from support_state_layers import CPU, parameter_loader

CHANNELS = 6


def make(width: int, bias: bool) -> tuple[CausalConvolution, Tensor, Tensor | None]:
    dice = torch.Generator().manual_seed(width)
    weight = torch.randn(CHANNELS, 1, width, generator=dice, dtype=torch.float64)
    offset = torch.randn(CHANNELS, generator=dice, dtype=torch.float64)
    loader = parameter_loader({"conv.weight": weight, "conv.bias": offset})
    return CausalConvolution.load(loader, "conv", CHANNELS, width, bias), weight, offset if bias else None


def step(slots: list[int], counts: list[int], starts: list[int], saves: list[tuple[int, int, int]]) -> StateStep:
    arrays = (np.array(each, np.int32) for each in (slots, counts, starts))
    return StateStep.of(
        *arrays, np.empty((0, 2), np.int32), np.array(saves, np.int32).reshape(-1, 3), num_slots=5, device=CPU
    )  # fmt: skip


@for_each(("width", "bias"), [(2, False), (3, True), (4, False), (5, True)])
def test_a_row_cut_anywhere_has_torchs_convolution_and_the_same_bits(width: int, bias: bool) -> None:
    convolution, weight, offset = make(width, bias)
    x = torch.randn(9, CHANNELS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    exact = functional.conv1d(x.T[None], weight, offset, padding=width - 1, groups=CHANNELS)[0, :, : len(x)].T
    whole = convolution(x, torch.zeros(6, width - 1, CHANNELS, dtype=torch.float64), step([0], [len(x)], [0], []))
    for cut in range(1, len(x)):
        states = torch.full((7, width - 1, CHANNELS), torch.nan, dtype=torch.float64)
        first = convolution(x[:cut], states, step([2], [cut], [0], [(0, cut, 1)]))
        assert torch.equal(states[6], states[2])
        outputs = torch.cat((first, convolution(x[cut:], states, step([2], [len(x) - cut], [cut], []))))
        assert torch.allclose(outputs, exact, rtol=1e-12, atol=1e-12)
        assert torch.equal(states[2], x[len(x) - width + 1 :])
        assert states[[0, 1, 3, 4]].isnan().all()
        assert torch.equal(outputs, whole)


def test_rows_of_a_step_do_not_mix() -> None:
    convolution, _, _ = make(4, bias=True)
    x = torch.randn(12, CHANNELS, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    states = torch.randn(7, 3, CHANNELS, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    slots, counts, starts = [4, 0, 1, 3], [1, 1, 2, 6], [3, 0, 0, 9]
    together = states.clone()
    saves = [(0, 1, 0), (3, 2, 1)]
    outputs = convolution(x, together, step(slots, counts, starts, saves))
    begin = 0
    for row, (slot, count, start) in enumerate(zip(slots, counts, starts, strict=True)):
        own = [(0, *save[1:]) for save in saves if save[0] == row]
        alone = convolution(x[begin : begin + count], states, step([slot], [count], [start], own))
        assert torch.equal(outputs[begin : begin + count], alone)
        begin += count
    assert torch.equal(outputs[begin:], torch.zeros(2, CHANNELS, dtype=torch.float64)), "padding tokens"
    assert torch.equal(together, states)

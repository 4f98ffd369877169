"""The recurrence's kernel by Triton's interpreter: equal to torch's, and the same bits however a prompt is cut."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from chairlift.model.batch.state_step import StateStep
from chairlift.model.kernels.cuda import state_kernels
from chairlift.model.layers import linear_recurrence
from chairlift.model.layers.triton_ops import TritonOps
from support_shares import for_each

CPU, OPS = torch.device("cpu"), TritonOps()
SHAPES = ((2, 16, 8), (1, 12, 20))
"""Heads, key_dim, value_dim; the last one has no power of 2 and two parts of columns."""


def make_step(rows: Sequence[tuple[int, int, int]], saves: Sequence[tuple[int, int, int]] = ()) -> StateStep:
    """Return a step of rows (slot, tokens, start)."""
    slots, counts, starts = (np.array(each, np.int32) for each in zip(*rows, strict=True))
    return StateStep.of(
        slots, counts, starts, np.empty((0, 2), np.int32), np.array(saves, np.int32).reshape(-1, 3), num_slots=4,
        device=CPU,
    )  # fmt: skip


def random_tokens(count: int, shape: tuple[int, int, int], has_beta: bool) -> list[Tensor | None]:
    heads, key_dim, value_dim = shape
    dice = torch.Generator().manual_seed(count)
    numbers = [torch.randn(count, heads, width, generator=dice) for width in (key_dim, key_dim, value_dim)]
    factors = [torch.rand(count, heads, generator=dice) for _ in range(2)]
    return [numbers[0], numbers[1] * key_dim**-0.5, numbers[2], factors[0], factors[1] if has_beta else None]


def part(tensors: list[Tensor | None], begin: int, end: int) -> list[Tensor | None]:
    return [None if each is None else each[begin:end] for each in tensors]


@for_each(("shape", "has_beta"), [(shape, has_beta) for shape in SHAPES for has_beta in (True, False)])
def test_rows_and_saves_equal_torchs(shape: tuple[int, int, int], has_beta: bool) -> None:
    tensors = random_tokens(14, shape, has_beta)  # two padding tokens
    states = torch.randn(7, *shape, generator=torch.Generator().manual_seed(1))
    states[2] = torch.nan  # the row in this slot is fresh
    step = make_step([(3, 1, 9), (2, 1, 0), (0, 6, 2), (1, 4, 0)], [(2, 5, 2), (2, 1, 0), (0, 1, 1)])
    own, expected = states.clone(), states.clone()
    found = OPS.run_recurrence(*tensors, own, step)
    torch.testing.assert_close(
        found, linear_recurrence.run_recurrence(*tensors, expected, step), rtol=1e-5, atol=1e-5
    )  # fmt: skip
    torch.testing.assert_close(own, expected, rtol=1e-5, atol=1e-5)
    assert (found[12:] == 0).all() and own.isfinite().all()


@for_each("has_beta", [True, False])
def test_a_row_cut_anywhere_has_the_same_bits(has_beta: bool) -> None:
    shape, tensors = SHAPES[0], random_tokens(9, SHAPES[0], has_beta)
    whole = torch.full((8, *shape), torch.nan)
    saves = [(0, count, count % 4) for count in (3, 6, 8)]
    outputs = OPS.run_recurrence(*tensors, whole, make_step([(1, 9, 0)], saves))
    for cut in range(1, 9):
        states = torch.full((8, *shape), torch.nan)
        parts = [OPS.run_recurrence(*part(tensors, 0, cut), states, make_step([(2, cut, 0)]))]
        for count in (3, 6, 8):
            if count == cut:
                assert torch.equal(states[2], whole[4 + count % 4])
        parts.append(OPS.run_recurrence(*part(tensors, cut, 9), states, make_step([(2, 9 - cut, cut)])))
        assert torch.equal(torch.cat(parts), outputs)
        assert torch.equal(states[2], whole[1])


def test_variants_type_every_parameter() -> None:
    for variant in state_kernels.variants():
        assert set(variant.signature) == set(variant.kernel.arg_names)
        assert {name for name, kind in variant.signature.items() if kind == "constexpr"} == set(variant.constants)

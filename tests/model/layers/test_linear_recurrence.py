"""run_recurrence against its formula written out, and states at each cut of a row."""

import numpy as np
import torch
from torch import Tensor

from chairlift.model.batch.state_step import StateStep
from chairlift.model.layers.linear_recurrence import run_recurrence
from support_shares import for_each
from support_state_layers import CPU

HEADS, KEY, VALUE = 3, 4, 5


def make_step(slots: list[int], counts: list[int], starts: list[int], saves: list[tuple[int, int, int]]) -> StateStep:
    arrays = (np.array(each, np.int32) for each in (slots, counts, starts))
    return StateStep.of(
        *arrays, np.empty((0, 2), np.int32), np.array(saves, np.int32).reshape(-1, 3), num_slots=4, device=CPU
    )  # fmt: skip


def random_tokens(count: int, has_beta: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    dice = torch.Generator().manual_seed(count)
    query, key = (torch.randn(count, HEADS, KEY, generator=dice, dtype=torch.float64) for _ in range(2))
    value = torch.randn(count, HEADS, VALUE, generator=dice, dtype=torch.float64)
    decay, beta = (torch.rand(count, HEADS, generator=dice, dtype=torch.float64) for _ in range(2))
    return query, key, value, decay, beta if has_beta else None


@for_each("has_beta", [True, False])
def test_outputs_and_states_are_those_of_the_formula(has_beta: bool) -> None:
    query, key, value, decay, beta = random_tokens(7, has_beta)
    states = torch.full((4, HEADS, KEY, VALUE), torch.nan, dtype=torch.float64)
    out = run_recurrence(query, key, value, decay, beta, states, make_step([1], [7], [0], []))
    for head in range(HEADS):
        state = torch.zeros(KEY, VALUE, dtype=torch.float64)
        for token in range(7):
            state = state * decay[token, head]
            new = value[token, head]
            if beta is not None:
                new = beta[token, head] * (new - state.T @ key[token, head])
            state = state + torch.outer(key[token, head], new)
            assert torch.allclose(out[token, head], state.T @ query[token, head], rtol=1e-12)
        assert torch.allclose(states[1, head], state, rtol=1e-12)
    assert states[[0, 2, 3]].isnan().all()


@for_each("has_beta", [True, False])
def test_rows_go_on_from_their_states_and_save_them_on_the_way(has_beta: bool) -> None:
    """Rows of several lengths together: as each alone, token by token."""
    counts, slots, starts = [1, 1, 4, 2], [3, 0, 1, 2], [5, 0, 0, 2]
    query, key, value, decay, beta = random_tokens(10, has_beta)
    states = torch.randn(6, HEADS, KEY, VALUE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    together, first = states.clone(), 0
    step = make_step(slots, counts, starts, [(2, 3, 0), (0, 1, 1)])
    out = run_recurrence(query, key, value, decay, beta, together, step)
    for row, (slot, count, start) in enumerate(zip(slots, counts, starts, strict=True)):
        for token in range(count):
            at = slice(first + token, first + token + 1)
            own = None if beta is None else beta[at]
            alone = run_recurrence(
                query[at], key[at], value[at], decay[at], own, states, make_step([slot], [1], [start + token], [])
            )
            assert torch.allclose(out[at], alone, rtol=1e-12)
            for save in ((2, 2, 4), (0, 0, 5)):
                if save[:2] == (row, token):
                    assert torch.allclose(together[save[2]], states[slot], rtol=1e-12)
        first += count
    assert torch.allclose(together[:4], states[:4], rtol=1e-12)
    assert (out[first:] == 0).all(), "padding tokens"

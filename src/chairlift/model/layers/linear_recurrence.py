"""run_recurrence: linear attention with decay, token by token, over states of a fixed size; with the delta rule or not.

    state ← decay · state
    value ← beta · (value − stateᵀ key)         delta rule only
    state ← state + key ⊗ value
    out   = stateᵀ query

The sources are the recurrent form of "Gated Delta Networks" (Yang et al. 2024) and of Mamba-2 ("Transformers are SSMs",
Dao and Gu 2024), whose key is B, whose query is C and whose value is dt · x. kernels/cuda/state_kernels.py has a form
by chunks, which rounds otherwise.
"""

import torch
from torch import Tensor

from chairlift.model.batch.state_step import StateStep


def run_recurrence(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor | None, states: Tensor, step: StateStep
) -> Tensor:
    """Run the rows of a step; returns out [T, heads, value_dim], zeros for padding tokens.

    All rows go forward one token at a time, together. All tensors have the states' dtype.

    Args:
        query: [T, key heads, key_dim]; each of them serves as many of the heads in a row.
        key: [T, key heads, key_dim].
        value: [T, heads, value_dim].
        decay: [T, heads], a factor from 0 to 1.
        beta: [T, heads], share of the old value that the new one replaces; None without the delta rule.
        states: [entries, heads, key_dim, value_dim], changed in place: those of the rows, and those that are saved.
        step: the rows.
    """
    out = torch.zeros_like(value)
    query, key = (each.repeat_interleave(value.shape[1] // each.shape[1], dim=1) for each in (query, key))
    # The longest rows first: those with a token left are then the first ones.
    order = sorted(range(len(step.counts)), key=lambda row: -step.counts[row])
    ends = torch.tensor(step.counts, dtype=torch.int64).cumsum(0)
    rows = torch.tensor(order, dtype=torch.int64)
    counts = [step.counts[row] for row in order]
    firsts = (ends[rows] - torch.tensor(counts, dtype=torch.int64)).to(value.device)
    rows = rows.to(value.device)
    saves = [(order.index(row), count, entry) for row, count, entry in step.saves.tolist()]
    slots = step.slots[rows]
    state = states[slots].masked_fill_(step.is_fresh[rows, None, None, None], 0.0)
    for number in range(max(counts, default=0)):
        num_active = sum(count > number for count in counts)
        tokens, active = firsts[:num_active] + number, state[:num_active]
        active *= decay[tokens, :, None, None]
        keys, values = key[tokens].unsqueeze(-1), value[tokens]
        if beta is not None:
            values = (values - (active * keys).sum(-2)) * beta[tokens].unsqueeze(-1)
        active += keys * values.unsqueeze(-2)
        out[tokens] = (active * query[tokens].unsqueeze(-1)).sum(-2)
        for place, num_tokens, entry in saves:
            if num_tokens == number + 1:
                states[entry] = active[place]
    states[slots] = state
    return out

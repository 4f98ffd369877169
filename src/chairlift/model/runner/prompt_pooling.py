"""PromptPooling: pools the hidden states of the prompts whose embeddings are requested, row by row of a step.

"mean"    the sum over the row's tokens; the engine adds up the chunks of a prompt
"last"    the state of the prompt's last token, of the row that has it
"""

import numpy as np
import torch
from torch import Tensor

from chairlift.engine.step_plan import NewSequence, StepPlan
from chairlift.engine.step_result import HiddenStates

PooledRows = tuple[tuple[int, HiddenStates], ...]


class PromptPooling:
    """Stores which slots request the hidden states of their prompts. It keeps no state of the prompts themselves."""

    def __init__(self) -> None:
        self._requests: dict[int, tuple[str, int]] = {}  # by slot: pooling, number of prompt tokens

    @property
    def has_requests(self) -> bool:
        """Whether a running sequence requests hidden states."""
        return bool(self._requests)

    def admit(self, new: NewSequence) -> None:
        """Add a sequence; replaces the previous one of its slot."""
        self.release(new.slot)
        if new.pooling:
            self._requests[new.slot] = new.pooling, len(new.token_ids) - new.num_output_tokens

    def release(self, slot: int) -> None:
        """Remove a slot; an unknown slot is ignored."""
        self._requests.pop(slot, None)

    def needs_no_token(self, plan: StepPlan) -> bool:
        """Return whether every row to sample from requests hidden states: its token would be dropped."""
        return all(slot in self._requests for slot in plan.slots[plan.sample_rows].tolist())

    def compute(self, plan: StepPlan, hidden: Tensor) -> PooledRows:
        """Return (row of the plan, states [H]) of the rows that request them.

        Args:
            plan: the plan of the step.
            hidden: [T, H] of the plan's tokens, in its order; further rows are padding.
        """
        if not self._requests:
            return ()
        rows: list[int] = []
        sums: list[Tensor] = []
        ends = np.cumsum(plan.num_new_tokens)
        for row, slot in enumerate(plan.slots.tolist()):
            if (request := self._requests.get(slot)) is None:
                continue
            pooling, num_prompt = request
            end, count = int(ends[row]), int(plan.num_new_tokens[row])
            has_last = int(plan.start_positions[row]) + count == num_prompt
            if pooling == "mean":
                rows.append(row)
                sums.append(_as_float(hidden[end - count : end]).sum(0))
            elif has_last:
                rows.append(row)
                sums.append(_as_float(hidden[end - 1]))
        if not rows:
            return ()
        # One copy for all rows, as each would wait for the device.
        pooled = torch.stack(sums).cpu().numpy()
        return tuple(zip(rows, pooled, strict=True))


def _as_float(states: Tensor) -> Tensor:
    """Return states as float64 if they are that, else as float32."""
    return states if states.dtype == torch.float64 else states.float()

"""StepPlan: what the scheduler gives a runner for one step.

A plan is small, frozen and complete, so it can be sent to other processes.

    row r of the plan:  slots[r]            slot of its state in the runner
                        start_positions[r]  position of its first token in this step
                        num_new_tokens[r]   number of tokens; their ids are in input_ids, row after row
    row order: rows with one token first, then the longer ones

A model may have layers that keep a state for each sequence, in its slot. A row with start position 0 begins with the
zero state. Any other row continues the state of its slot, which is that of the tokens before it, or the checkpoint that
the plan loads into the slot.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from chairlift.core.sampling_params import SamplingParams

Int32 = NDArray[np.int32]

LAST_SAMPLED = -1
"""Input id for the token that this slot sampled last, whose id the scheduler does not know yet."""

NO_LOADS, NO_SAVES = np.empty((0, 2), np.int32), np.empty((0, 3), np.int32)
"""state_loads and state_saves of a step without any."""


@dataclass(frozen=True, slots=True)
class NewSequence:
    """State that a runner keeps of a running sequence; replaces the former content of its slot.

    Attributes:
        slot: index of the runner's state, below `max_running_requests`.
        token_ids: all known tokens, prompt and outputs.
        num_output_tokens: outputs among them, at the end (after a preemption or a retry).
        params: resolved sampling parameters.
        eos_token_ids: banned, with params.stop_token_ids, until params.min_tokens outputs exist.
        adapter: name of the adapter, "" for none.
        choice_index: index of the choice in its request; samples of equal seeds differ by it.
        prompt_logprobs_from: first prompt position whose logprobs are requested (params.prompt_logprobs).
        pooling: "last" or "mean" for a sequence whose hidden states are requested, else "".
    """

    slot: int
    token_ids: tuple[int, ...]
    num_output_tokens: int
    params: SamplingParams
    eos_token_ids: tuple[int, ...] = ()
    adapter: str = ""
    choice_index: int = 0
    prompt_logprobs_from: int = 1
    pooling: str = ""


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """Allowed next tokens of some rows of a step, computed before it or while the model runs.

    Attributes:
        sample_indices: int32 [M], the plan's `masked_samples`.
        bitmask: int32 [M, ceil(V / 32)], one bit for each token, lowest first: whether it is allowed.
    """

    sample_indices: Int32
    bitmask: Int32

    def by_row(self) -> dict[int, Int32]:
        """Return the bitmask rows by sample index."""
        return dict(zip(self.sample_indices.tolist(), self.bitmask, strict=True))


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A scheduled step.

    Attributes:
        step_id: counts up, also over steps that were rolled back.
        released_slots: slots of sequences that no longer run; applied first. Unknown slots are allowed.
        new_sequences: sequences new to the runner; applied second.
        slots: int32 [S].
        num_new_tokens: int32 [S], at least 1 each.
        start_positions: int32 [S].
        new_blocks: int32 [B, 4], rows (slot, group, index in the sequence's block table, block id); third.
        input_ids: int32 [T], T = sum of num_new_tokens; LAST_SAMPLED where the id is not known yet.
        sample_rows: int32 [R], rows whose last token's logits are sampled, each once.
        masked_samples: int32 [M], indices in sample_rows whose sampling waits for a mask (Runner.supply_masks).
        block_copies: int32 [C, 2], blocks (from, to) to copy before the forward pass.
        state_loads: int32 [L, 2], (checkpoint, slot): states to copy into slots before the forward pass, after
            released_slots and new_sequences.
        state_saves: int32 [C, 3], (row, number of the row's new tokens, from 1, after which its state is saved,
            checkpoint): states to copy during the forward pass; in order of row and number.
    """

    step_id: int
    released_slots: tuple[int, ...]
    new_sequences: tuple[NewSequence, ...]
    slots: Int32
    num_new_tokens: Int32
    start_positions: Int32
    new_blocks: Int32
    input_ids: Int32
    sample_rows: Int32
    block_copies: Int32 = field(default_factory=lambda: np.empty((0, 2), np.int32))
    masked_samples: Int32 = field(default_factory=lambda: np.empty(0, np.int32))
    state_loads: Int32 = field(default_factory=lambda: NO_LOADS)
    state_saves: Int32 = field(default_factory=lambda: NO_SAVES)

    @property
    def num_rows(self) -> int:
        """Sequences in the step."""
        return len(self.slots)

    @property
    def num_tokens(self) -> int:
        """Tokens in the step."""
        return len(self.input_ids)

    @property
    def num_context_tokens(self) -> int:
        """Context lengths, tokens of the step included, summed over the rows; ignores windows."""
        return int(self.start_positions.sum()) + self.num_tokens

    @property
    def num_prefill_pairs(self) -> int:
        """Pairs (token, token it attends to) of rows with more than one token; ignores windows."""
        # In 64 bits: a long prompt has more than 2**31 pairs.
        longer = self.num_new_tokens > 1
        count = self.num_new_tokens[longer].astype(np.int64)
        return int((count * self.start_positions[longer] + count * (count + 1) // 2).sum())

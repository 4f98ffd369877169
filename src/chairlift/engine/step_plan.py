"""StepPlan and StepResult: all that passes between the scheduler and a runner.

A plan is small, frozen and complete: it can be sent to another process, or to many.

    row r of the plan:  slots[r]            whose state on the runner's side
                        start_positions[r]  position of its first token in this step
                        num_new_tokens[r]   how many tokens; their ids lie in input_ids, row after row
    rows are ordered: those with one token first, then the longer ones
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from chairlift.core.errors import ChairliftError
from chairlift.core.request import TokenLogprob
from chairlift.core.sampling import SamplingParams

Int32 = NDArray[np.int32]

LAST_SAMPLED = -1
"""An input id that stands for the token this slot sampled last, which the scheduler has not seen yet."""


@dataclass(frozen=True, slots=True)
class NewSequence:
    """What a runner keeps of a sequence while it rides; replaces whatever the slot held before.

    Attributes:
        slot: index of the runner's state, below `max_running_requests`.
        token_ids: everything known so far, prompt and outputs.
        num_prior_outputs: how many of them, at the end, are outputs (after a preemption or a retry).
        params: resolved sampling parameters.
        eos_token_ids: banned, with params.stop_token_ids, until params.min_tokens outputs exist.
        adapter: name of the adapter, "" for none.
        choice: which of its request's choices it is; draws of equal seeds differ by it.
        prompt_logprobs_from: logprobs are wanted of the prompt's tokens from this position on (params.prompt_logprobs).
    """

    slot: int
    token_ids: tuple[int, ...]
    num_output_tokens: int
    params: SamplingParams
    eos_token_ids: tuple[int, ...] = ()
    adapter: str = ""
    choice_index: int = 0
    prompt_logprobs_from: int = 1


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """What may be drawn next in some rows of a step, made before it or while the model runs.

    Attributes:
        places: int32 [M], the plan's `masked`.
        bits: int32 [M, ceil(V / 32)], one bit a token, lowest first: whether it is allowed.
    """

    sample_indices: Int32
    bitmask: Int32

    def by_row(self) -> dict[int, Int32]:
        """Return the bits by place among the sample rows."""
        return dict(zip(self.sample_indices.tolist(), self.bitmask, strict=True))


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step, decided.

    Attributes:
        step_id: counts up, also over steps that were taken back.
        released: slots that no longer ride; applied first. Unknown slots are fine.
        admitted: sequences new to the runner; applied second.
        slots: int32 [S].
        num_new_tokens: int32 [S], at least 1 each.
        start_positions: int32 [S].
        new_blocks: int32 [B, 4], rows (slot, group, index in the sequence's block table, block id); third.
        input_ids: int32 [T], T = sum of num_new_tokens; LAST_SAMPLED where the id is not known yet.
        sample_rows: int32 [R], rows whose last token's logits are sampled, each once.
        masked: int32 [M], places in sample_rows whose draw waits for a mask (Runner.supply_masks).
        copies: int32 [C, 2], blocks (from, to) to copy before the forward pass.
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
        """Tokens that its rows can see, those of the step included, summed over the rows; windows do not count."""
        return int(self.start_positions.sum()) + self.num_tokens

    @property
    def num_prefill_pairs(self) -> int:
        """Pairs (token, token it sees) of the rows with more than one token; windows do not count."""
        longer = self.num_new_tokens > 1
        count = self.num_new_tokens[longer].astype(np.int64)
        return int((count * self.start_positions[longer] + count * (count + 1) // 2).sum())


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of one plan.

    Attributes:
        step_id: the plan's.
        tokens: int32 [N], the sampled ids, sample row after sample row.
        cu_tokens: int32 [R + 1]; sample row i drew tokens[cu_tokens[i]:cu_tokens[i + 1]].
        logprobs: for each of `tokens` its logprobs where asked for, else None; empty when nobody asked.
        faults: (row of the plan, error) for rows that failed alone; their sampled tokens mean nothing.
        prompt_logprobs: (row of the plan, entries) where asked for: an entry for each token of the prompt that stands
            behind one of the row's tokens, from NewSequence.prompt_logprobs_from on, in order.
    """

    step_id: int
    tokens: Int32
    cu_tokens: Int32
    logprobs: tuple[TokenLogprob | None, ...] = ()
    row_errors: tuple[tuple[int, ChairliftError], ...] = ()
    prompt_logprobs: tuple[tuple[int, tuple[TokenLogprob, ...]], ...] = ()

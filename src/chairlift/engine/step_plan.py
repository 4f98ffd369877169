"""StepPlan: what the scheduler gives a runner for one step.

A plan is small, frozen and complete, so it can be sent to other processes.

    row r of the plan:  slots[r]            slot of its state in the runner
                        start_positions[r]  position of its first token in this step
                        num_new_tokens[r]   number of tokens; their ids are in input_ids, row after row
    row order: rows with one token first, then the longer ones

The last tokens of a row may be guesses at tokens that the sequence has not sampled yet (drafts). Such a row is sampled
once after its last known token and once after each draft; the runner confirms the drafts that were sampled, up to the
first that was not. Keys and values of the other drafts are overwritten by later steps.

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

NO_DRAFTS = np.empty(0, np.int32)
"""num_drafts of a step without any."""

MIN_STEP_SAMPLES = 64
"""Samples of a step that a runner has memory for where max_running_requests is smaller; beyond that only drafts go."""

NO_DRAFT = -1
"""The draft after a sample behind which its row has none."""


@dataclass(frozen=True, slots=True)
class NewSequence:
    """State that a runner keeps of a running sequence; replaces the former content of its slot.

    Attributes:
        slot: index of the runner's state, below `max_running_requests`.
        token_ids: all known tokens, prompt and outputs.
        num_output_tokens: outputs among them, at the end (after a preemption or a retry).
        params: resolved sampling parameters.
        eos_token_ids: banned, with params.stop_token_ids, until params.min_tokens outputs exist.
        adapter: number of the version of the LoRA adapter, 0 for none.
        choice_index: index of the choice in its request; samples of equal seeds differ by it.
        prompt_logprobs_from: first prompt position whose logprobs are requested (params.prompt_logprobs).
        pooling: "last" or "mean" for a sequence whose hidden states are requested, else "".
    """

    slot: int
    token_ids: tuple[int, ...]
    num_output_tokens: int
    params: SamplingParams
    eos_token_ids: tuple[int, ...] = ()
    adapter: int = 0
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
        sample_rows: int32 [R], rows that are sampled, each once: after their last token, and after the tokens before
            that which are followed by drafts only.
        num_drafts: int32 [R], drafts among the last tokens of each of these rows, fewer than its tokens; or empty,
            where no row has any.
        masked_samples: int32 [M], indices of samples (see num_samples) that wait for a mask (Runner.supply_masks).
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
    num_drafts: Int32 = field(default_factory=lambda: NO_DRAFTS)

    @property
    def num_samples(self) -> int:
        """Samples of the step, N: those of sample row 0 in order of position, then those of the next one."""
        return len(self.sample_rows) + int(self.num_drafts.sum())

    @property
    def sample_tokens(self) -> Int32:
        """int32 [N], the token (index in input_ids) after which each sample is drawn."""
        last = self.num_new_tokens.cumsum(dtype=np.int32)[self.sample_rows] - np.int32(1)
        if not len(self.num_drafts):
            return last
        bounds = self.sample_bounds
        before_last = np.repeat(bounds[1:], np.diff(bounds)) - np.arange(1, bounds[-1] + 1, dtype=np.int32)
        tokens: Int32 = np.repeat(last, np.diff(bounds)) - before_last
        return tokens

    @property
    def sample_bounds(self) -> Int32:
        """int32 [R + 1]; samples bounds[i] to bounds[i + 1] - 1 are of sample row i."""
        bounds = np.arange(len(self.sample_rows) + 1, dtype=np.int32)
        if len(self.num_drafts):
            bounds[1:] += self.num_drafts.cumsum(dtype=np.int32)
        return bounds

    @property
    def sample_slots(self) -> Int32:
        """int32 [N], the slot of each sample."""
        slots = self.slots[self.sample_rows]
        return np.repeat(slots, self.num_drafts + 1) if len(self.num_drafts) else slots

    @property
    def next_drafts(self) -> Int32:
        """int32 [N], the draft after each sample, NO_DRAFT behind the last one of a row; of a step with drafts."""
        drafts: Int32 = np.full(self.num_samples, NO_DRAFT, np.int32)
        has_draft = np.ones(len(drafts), bool)
        has_draft[self.sample_bounds[1:] - 1] = False
        drafts[has_draft] = self.input_ids[self.sample_tokens[has_draft] + 1]
        return drafts

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

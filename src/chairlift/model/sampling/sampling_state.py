"""SamplingState: keeps each slot's sampling parameters in arrays, and the logits processors of rows that need them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from chairlift.core.errors import ChairliftError
from chairlift.engine.step_plan import NewSequence
from chairlift.model.sampling.custom_processors import Factories
from chairlift.model.sampling.logits_processing import RowLogitsProcessor, as_sampling_error
from chairlift.model.sampling.truncated_sampling import TruncationParams

Int64 = NDArray[np.int64]


class SamplingState:
    """The parameters and progress of all slots.

    Attributes:
        seed: int64 [slots].
        choice: int64 [slots], choice index of the slot's sequence in its request.
        num_outputs: int64 [slots], outputs so far, of slots_needing_logits; the position of the next sample.
        greedy: bool [slots].
        logprobs: int64 [slots], -1 for none.
        row_processors: logits processors, by slot.
        slot_errors: errors of slots that cannot be sampled.
        slots_needing_logits: slots that need more than the most likely token, and those with errors.
    """

    def __init__(self, max_slots: int, vocab_size: int, factories: Factories) -> None:
        self._vocab_size = vocab_size
        self._factories = factories
        self.seed = np.zeros(max_slots, np.int64)
        self.choice = np.zeros(max_slots, np.int64)
        self.num_outputs = np.zeros(max_slots, np.int64)
        self.greedy = np.ones(max_slots, bool)
        self.logprobs = np.full(max_slots, -1, np.int64)
        self._rules = TruncationParams.neutral(max_slots)
        self.row_processors: dict[int, RowLogitsProcessor] = {}
        self.slot_errors: dict[int, ChairliftError] = {}
        self.slots_needing_logits: set[int] = set()

    def add_sequence(self, new: NewSequence) -> None:
        """Replace the state of the slot. An error of the new state is reported when the slot is sampled."""
        slot, params = new.slot, new.params
        self.remove_slot(slot)
        self.num_outputs[slot], self.choice[slot] = new.num_output_tokens, new.choice_index
        # If the parameters raise, the slot is sampled like a greedy one, and its error is reported.
        self.greedy[slot], self.logprobs[slot] = True, -1
        try:
            assert params.seed is not None, "sampling parameters are resolved before they reach the runner"
            self.seed[slot] = params.seed
            self.logprobs[slot] = -1 if params.logprobs is None else params.logprobs
            self._rules.set(slot, params)
            if RowLogitsProcessor.is_needed(params):
                self.row_processors[slot] = RowLogitsProcessor(new, self._vocab_size, self._factories)
            self.greedy[slot] = params.greedy
        except ChairliftError as error:
            self.slot_errors[slot] = error
        except Exception as error:
            self.slot_errors[slot] = as_sampling_error(error)
        if not self.greedy[slot] or self.logprobs[slot] >= 0 or slot in self.row_processors or slot in self.slot_errors:
            self.slots_needing_logits.add(slot)

    def remove_slot(self, slot: int) -> None:
        """Remove a slot; an unknown slot is ignored."""
        self.row_processors.pop(slot, None)
        self.slot_errors.pop(slot, None)
        self.slots_needing_logits.discard(slot)

    def truncation(self, slots: Int64) -> TruncationParams:
        """Return the truncation parameters of some slots."""
        return self._rules.take(slots)

    def observe(self, slots: Int64, tokens: NDArray[np.int32], failed: Sequence[int]) -> dict[int, ChairliftError]:
        """Add the tokens of all rows but the failed, at most one per slot; returns the errors of histories by row."""
        row_errors: dict[int, ChairliftError] = {}
        # Only slots that need logits read their number of outputs.
        if not self.slots_needing_logits:
            return row_errors
        self.num_outputs[np.delete(slots, failed) if failed else slots] += 1
        if not self.row_processors:
            return row_errors
        for row in [row for row in range(len(slots)) if row not in failed]:
            row_processor = self.row_processors.get(int(slots[row]))
            if row_processor is None:
                continue
            try:
                row_processor.add(int(tokens[row]))
            except Exception as error:
                row_errors[row] = as_sampling_error(error)
        return row_errors

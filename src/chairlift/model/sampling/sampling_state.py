"""What the sampler remembers of each slot: its parameters in arrays, and for rows that are shaped what shapes them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from chairlift.core.errors import ChairliftError
from chairlift.engine.step_plan import NewSequence
from chairlift.model.sampling.custom_processors import Factories
from chairlift.model.sampling.logits_processing import Shaper, raised
from chairlift.model.sampling.truncated_sampling import Truncation

Int64 = NDArray[np.int64]


class SamplingState:
    """Parameters and progress of all slots.

    Attributes:
        seed: int64 [slots].
        choice: int64 [slots], which of its request's choices draws here.
        num_outputs: int64 [slots], outputs so far, of those that are special; the position of the next draw.
        greedy: bool [slots].
        logprobs: int64 [slots], -1 for none.
        shapers: by slot, those whose logits are moved.
        refused: by slot, those that cannot be sampled at all, and why.
        special: slots of which more is wanted than the likeliest token, and those that are refused.
    """

    def __init__(self, max_slots: int, vocab_size: int, factories: Factories) -> None:
        self._vocab_size = vocab_size
        self._factories = factories
        self.seed = np.zeros(max_slots, np.int64)
        self.choice = np.zeros(max_slots, np.int64)
        self.num_outputs = np.zeros(max_slots, np.int64)
        self.greedy = np.ones(max_slots, bool)
        self.logprobs = np.full(max_slots, -1, np.int64)
        self._rules = Truncation.neutral(max_slots)
        self.shapers: dict[int, Shaper] = {}
        self.refused: dict[int, ChairliftError] = {}
        self.special: set[int] = set()

    def admit(self, new: NewSequence) -> None:
        """Replace what the slot held. A request whose state cannot be made is refused when it is sampled."""
        slot, params = new.slot, new.params
        self.release(slot)
        self.num_outputs[slot], self.choice[slot] = new.num_output_tokens, new.choice_index
        self.greedy[slot], self.logprobs[slot] = True, -1
        try:
            assert params.seed is not None, "sampling parameters are resolved before they reach the runner"
            self.seed[slot] = params.seed
            self.logprobs[slot] = -1 if params.logprobs is None else params.logprobs
            self._rules.set(slot, params)
            if Shaper.wanted(params):
                self.shapers[slot] = Shaper(new, self._vocab_size, self._factories)
            self.greedy[slot] = params.greedy
        except ChairliftError as error:
            self.refused[slot] = error
        except Exception as error:
            self.refused[slot] = raised(error)
        if not self.greedy[slot] or self.logprobs[slot] >= 0 or slot in self.shapers or slot in self.refused:
            self.special.add(slot)

    def release(self, slot: int) -> None:
        """Forget a slot, known or not."""
        self.shapers.pop(slot, None)
        self.refused.pop(slot, None)
        self.special.discard(slot)

    def rules(self, slots: Int64) -> Truncation:
        """Return the distribution's parameters of some slots."""
        return self._rules.take(slots)

    def observe(self, slots: Int64, tokens: NDArray[np.int32], failed: Sequence[int]) -> dict[int, ChairliftError]:
        """Count the tokens of all rows but the failed, at most one a slot; returns those whose history failed."""
        faults: dict[int, ChairliftError] = {}
        if not self.special:
            return faults
        self.num_outputs[np.delete(slots, failed) if failed else slots] += 1
        if not self.shapers:
            return faults
        for row in [row for row in range(len(slots)) if row not in failed]:
            shaper = self.shapers.get(int(slots[row]))
            if shaper is None:
                continue
            try:
                shaper.add(int(tokens[row]))
            except Exception as error:
                faults[row] = raised(error)
        return faults

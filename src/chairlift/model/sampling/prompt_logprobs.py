"""Log-probabilities of a prompt's own tokens, each given those before it, from the hidden states of a step.

row of a step    positions  start ............ end - 1       hidden states of these
targets                     start + 1 ........ end           as far as they are prompt and still wanted
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.core.errors import ChairliftError, NonFiniteLogits
from chairlift.core.request import TokenLogprob
from chairlift.engine.step_plan import NewSequence, StepPlan
from chairlift.model.sampling.logits_processing import raised
from chairlift.model.sampling.logprobs import token_logprobs
from chairlift.model.sampling.sampling_ops import Drawing, TorchDrawing
from chairlift.model.sampling.truncated_sampling import CHUNK_ELEMENTS

Scores = tuple[tuple[int, tuple[TokenLogprob, ...]], ...]


@dataclass(frozen=True, slots=True)
class _Wish:
    """What one slot wants: `top` likeliest beside each prompt token from a position on."""

    prompt: NDArray[np.int64]
    first: int
    top: int


class PromptScores:
    """Remembers which slots want the logprobs of their prompts, and makes them chunk by chunk of the head."""

    def __init__(self, max_rows: int, vocab_size: int, drawing: Drawing | None = None) -> None:
        """Take at most max_rows rows through the head at once: what a step that only samples takes, too."""
        self._drawing = drawing or TorchDrawing()
        self._chunk = max(1, min(max_rows, CHUNK_ELEMENTS // vocab_size))
        self._wishes: dict[int, _Wish] = {}

    @property
    def are_wanted(self) -> bool:
        """Whether anybody who rides asked for them."""
        return bool(self._wishes)

    def admit(self, new: NewSequence) -> None:
        """Take over a sequence; replaces whatever its slot held."""
        self.release(new.slot)
        num_prompt = len(new.token_ids) - new.num_output_tokens
        if new.params.prompt_logprobs is not None and new.prompt_logprobs_from < num_prompt:
            prompt = np.array(new.token_ids[:num_prompt], np.int64)
            self._wishes[new.slot] = _Wish(prompt, new.prompt_logprobs_from, new.params.prompt_logprobs)

    def release(self, slot: int) -> None:
        """Forget a slot, known or not."""
        self._wishes.pop(slot, None)

    def score(
        self, plan: StepPlan, hidden: Tensor, head: Callable[[Tensor], Tensor]
    ) -> tuple[Scores, dict[int, ChairliftError]]:
        """Return (row of the plan, entries) of those who asked, and the rows whose scores could not be made.

        Args:
            plan: the step.
            hidden: [T, H] of its tokens, in its order.
            head: turns hidden states [n, H] into raw logits [n, V].
        """
        scores: list[tuple[int, tuple[TokenLogprob, ...]]] = []
        faults: dict[int, ChairliftError] = {}
        if not self._wishes:
            return (), faults
        ends = np.cumsum(plan.num_new_tokens)
        for row, slot in enumerate(plan.slots.tolist()):
            wish = self._wishes.get(slot)
            if wish is None:
                continue
            start, count = int(plan.start_positions[row]), int(plan.num_new_tokens[row])
            first, last = max(start + 1, wish.first), min(start + count, len(wish.prompt) - 1)
            if last < first:
                continue
            shift = int(ends[row]) - count - start - 1  # from the position of a target to the row of its logits
            try:
                scores.append((row, self._entries(hidden[first + shift : last + shift + 1], wish, first, head)))
            except ChairliftError as error:
                faults[row] = error
            except Exception as error:
                faults[row] = raised(error)
        return tuple(scores), faults

    def _entries(
        self, hidden: Tensor, wish: _Wish, first: int, head: Callable[[Tensor], Tensor]
    ) -> tuple[TokenLogprob, ...]:
        entries: list[TokenLogprob] = []
        for start in range(0, len(hidden), self._chunk):
            logits = head(hidden[start : start + self._chunk])
            raw = logits if logits.dtype == torch.float64 else logits.float()
            if not bool(raw.amax(-1).isfinite().all()):
                raise NonFiniteLogits("the model's logits for this request's prompt are not finite")
            targets = wish.prompt[first + start : first + start + len(raw)]
            entries += token_logprobs(raw, targets, np.full(len(raw), wish.top), self._drawing)
        return tuple(entries)

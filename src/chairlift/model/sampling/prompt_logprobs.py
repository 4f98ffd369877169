"""PromptLogprobs: computes logprobs of prompt tokens, each given those before it, from the hidden states of a step.

row of a step    positions  start ............ end - 1       hidden states of these
targets                     start + 1 ........ end           only prompt tokens at or after the first requested
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.core.engine_output import TokenLogprob
from chairlift.core.errors import ChairliftError, NonFiniteLogits
from chairlift.engine.step_plan import NewSequence, StepPlan
from chairlift.model.device.device_errors import is_of_device
from chairlift.model.sampling.logits_processing import as_sampling_error
from chairlift.model.sampling.logprobs import token_logprobs
from chairlift.model.sampling.sampling_ops import SamplingOps, TorchSamplingOps
from chairlift.model.sampling.truncated_sampling import CHUNK_ELEMENTS

PromptLogprobRows = tuple[tuple[int, tuple[TokenLogprob, ...]], ...]


@dataclass(frozen=True, slots=True)
class _PromptLogprobsRequest:
    """The request of one slot: the `top` most likely tokens beside each prompt token from position `first` on."""

    prompt: NDArray[np.int64]
    first: int
    top: int


class PromptLogprobs:
    """Stores which slots request logprobs of their prompts, and computes them in chunks of the lm_head."""

    def __init__(self, max_rows: int, vocab_size: int, sampling_ops: SamplingOps | None = None) -> None:
        """Limit the lm_head to max_rows rows at once, the limit of a step that only samples."""
        self._sampling_ops = sampling_ops or TorchSamplingOps()
        self._chunk = max(1, min(max_rows, CHUNK_ELEMENTS // vocab_size))
        self._requests: dict[int, _PromptLogprobsRequest] = {}

    @property
    def has_requests(self) -> bool:
        """Whether a running sequence requests prompt logprobs."""
        return bool(self._requests)

    def admit(self, new: NewSequence) -> None:
        """Add a sequence; replaces the previous one of its slot."""
        self.release(new.slot)
        num_prompt = len(new.token_ids) - new.num_output_tokens
        # After a preemption or on another choice they may have been delivered already.
        if new.params.prompt_logprobs is not None and new.prompt_logprobs_from < num_prompt:
            prompt = np.array(new.token_ids[:num_prompt], np.int64)
            self._requests[new.slot] = _PromptLogprobsRequest(
                prompt, new.prompt_logprobs_from, new.params.prompt_logprobs
            )

    def release(self, slot: int) -> None:
        """Remove a slot; an unknown slot is ignored."""
        self._requests.pop(slot, None)

    def compute(
        self, plan: StepPlan, hidden: Tensor, head: Callable[[Tensor, int], Tensor]
    ) -> tuple[PromptLogprobRows, dict[int, ChairliftError]]:
        """Return (row of the plan, entries) of the rows that request them, and errors by row.

        Args:
            plan: the plan of the step.
            hidden: [T, H] of the plan's tokens, in its order.
            head: computes raw logits [n, V] from hidden states [n, H] of the sequence of a slot.

        Raises the errors of a device that has no memory or has failed.
        """
        entries_by_row: list[tuple[int, tuple[TokenLogprob, ...]]] = []
        row_errors: dict[int, ChairliftError] = {}
        if not self._requests:
            return (), row_errors
        ends = np.cumsum(plan.num_new_tokens)
        for row, slot in enumerate(plan.slots.tolist()):
            request = self._requests.get(slot)
            if request is None:
                continue
            start, count = int(plan.start_positions[row]), int(plan.num_new_tokens[row])
            # The state of a position predicts the token after it, so targets are one after the row's positions.
            first, last = max(start + 1, request.first), min(start + count, len(request.prompt) - 1)
            if last < first:
                continue
            shift = int(ends[row]) - count - start - 1  # from the position of a target to the row of its logits
            try:
                states = hidden[first + shift : last + shift + 1]
                entries_by_row.append((row, self._entries(states, request, first, slot, head)))
            except ChairliftError as error:
                row_errors[row] = error
            except Exception as error:
                if is_of_device(error):
                    raise
                row_errors[row] = as_sampling_error(error)
        return tuple(entries_by_row), row_errors

    def _entries(
        self, hidden: Tensor, request: _PromptLogprobsRequest, first: int, slot: int,
        head: Callable[[Tensor, int], Tensor],
    ) -> tuple[TokenLogprob, ...]:  # fmt: skip
        entries: list[TokenLogprob] = []
        # A whole prompt's logits may be gigabytes: [tokens, V] in float32.
        for start in range(0, len(hidden), self._chunk):
            logits = head(hidden[start : start + self._chunk], slot)
            raw = logits if logits.dtype == torch.float64 else logits.float()
            if not bool(raw.amax(-1).isfinite().all()):
                raise NonFiniteLogits("the model's logits for this request's prompt are not finite")
            targets = request.prompt[first + start : first + start + len(raw)]
            entries += token_logprobs(raw, targets, np.full(len(raw), request.top), self._sampling_ops)
        return tuple(entries)

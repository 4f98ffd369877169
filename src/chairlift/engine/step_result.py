"""StepResult: what a runner returns for a step plan."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chairlift.core.engine_output import TokenLogprob
from chairlift.core.errors import ChairliftError
from chairlift.engine.step_plan import Int32

HiddenStates = NDArray[np.float32] | NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of one plan.

    Attributes:
        step_id: id of the plan.
        tokens: int32 [N], the sampled ids, sample row after sample row; meaningless for rows with pooling.
        cu_tokens: int32 [R + 1]; sample row i sampled tokens[cu_tokens[i]:cu_tokens[i + 1]]: one token, and one more
            after each draft that was sampled. A row whose sample after a confirmed draft fails ends before that sample,
            and the sequence's next sample has the error.
        logprobs: for each of `tokens` its logprobs where requested, else None; empty when no row requests them.
        row_errors: (row of the plan, error) for rows that failed alone; their sampled tokens are invalid.
        prompt_logprobs: (row of the plan, entries) where requested: an entry for each prompt token that follows one of
            the row's tokens, from NewSequence.prompt_logprobs_from on, in order.
        pooled: (row of the plan, hidden states [H]) of rows with NewSequence.pooling: with "mean" the sum over the
            row's tokens, with "last" the state of the prompt's last token if the row has it; float32, or float64 of
            such a model.
    """

    step_id: int
    tokens: Int32
    cu_tokens: Int32
    logprobs: tuple[TokenLogprob | None, ...] = ()
    row_errors: tuple[tuple[int, ChairliftError], ...] = ()
    prompt_logprobs: tuple[tuple[int, tuple[TokenLogprob, ...]], ...] = ()
    pooled: tuple[tuple[int, HiddenStates], ...] = ()

"""Which hidden states score which tokens of a prompt, row by row and chunk by chunk."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from chairlift.core.errors import NonFiniteLogits, SamplingFailed
from chairlift.engine.step_plan import NewSequence, StepPlan
from chairlift.model.sampling.prompt_logprobs import PromptLogprobs
from support_sampling import params, sequence

VOCAB = 30
HEAD = torch.randn(VOCAB, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def head(hidden: torch.Tensor, slot: int = 0) -> torch.Tensor:
    return hidden @ HEAD.T


def plan_of(*rows: tuple[int, int, int]) -> StepPlan:
    """Make a plan of rows (slot, start, count)."""
    slots, starts, counts = (np.array(column, np.int32) for column in zip(*rows, strict=True))
    ids = np.zeros(int(counts.sum()), np.int32)
    return StepPlan(0, (), (), slots, counts, starts, np.empty((0, 4), np.int32), ids, np.empty(0, np.int32))


def wanting(slot: int, prompt: tuple[int, ...], outputs: tuple[int, ...] = (), first: int = 1) -> NewSequence:
    return sequence(slot, params(prompt_logprobs=2), prompt, outputs, prompt_logprobs_from=first)


def states(count: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("max_rows", [1, 3, 100])
def test_each_row_scores_the_tokens_behind_its_own(max_rows: int) -> None:
    scores = PromptLogprobs(max_rows, VOCAB)
    scores.admit(wanting(0, (5, 6, 7, 8)))
    scores.admit(sequence(1, params(), (1, 2)))
    scores.admit(wanting(2, (9, 8, 7, 6, 5, 4)))
    hidden = states(7)
    made, row_errors = scores.compute(plan_of((1, 0, 1), (0, 0, 4), (2, 2, 2)), hidden, head)
    right = head(hidden).log_softmax(-1)
    assert not row_errors
    found = {row: [(entry.token_id, round(entry.logprob, 9)) for entry in entries] for row, entries in made}
    assert found == {
        1: [(token, round(float(right[1 + at, token]), 9)) for at, token in enumerate((6, 7, 8))],
        2: [(token, round(float(right[5 + at, token]), 9)) for at, token in enumerate((6, 5))],
    }
    assert all(len(entry.top) == 2 for _, entries in made for entry in entries)


def test_what_was_delivered_and_what_is_output_is_not_scored() -> None:
    scores = PromptLogprobs(9, VOCAB)
    scores.admit(wanting(0, (5, 6, 7, 8), (1, 2), first=3))
    ((_, entries),), _ = scores.compute(plan_of((0, 0, 6)), states(6), head)
    assert [entry.token_id for entry in entries] == [8]
    assert scores.compute(plan_of((0, 3, 2)), states(2), head) == ((), {})
    scores.admit(wanting(0, (5, 6), first=2))
    assert not scores._requests


def test_a_slot_is_forgotten() -> None:
    scores = PromptLogprobs(9, VOCAB)
    scores.admit(wanting(0, (5, 6)))
    scores.admit(replace(wanting(0, (5, 6)), params=params()))
    scores.release(0)
    scores.release(7)
    assert scores.compute(plan_of((0, 0, 2)), states(2), head) == ((), {})


def test_states_that_are_no_numbers_fail_their_own_row_only() -> None:
    scores = PromptLogprobs(9, VOCAB)
    scores.admit(wanting(0, (5, 6, 7)))
    scores.admit(wanting(1, (5, 6, 7)))
    hidden = states(6)
    hidden[1] = torch.nan
    made, row_errors = scores.compute(plan_of((0, 0, 3), (1, 0, 3)), hidden, head)
    assert [row for row, _ in made] == [1] and list(row_errors) == [0]
    assert isinstance(row_errors[0], NonFiniteLogits)


def test_what_a_head_raises_for_one_is_its_own() -> None:
    scores = PromptLogprobs(9, VOCAB)
    scores.admit(wanting(0, (5, 6, 7)))
    scores.admit(wanting(1, (5, 6)))

    def raising(hidden: torch.Tensor, slot: int) -> torch.Tensor:
        if len(hidden) == 2:
            raise RuntimeError("no memory")
        return head(hidden)

    made, row_errors = scores.compute(plan_of((0, 0, 3), (1, 0, 2)), states(5), raising)
    assert [row for row, _ in made] == [1] and isinstance(row_errors[0], SamplingFailed)


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("no memory"), torch.AcceleratorError("lost"), RuntimeError("CUDA error: out of memory")],
    ids=["torch", "device", "driver"],
)
def test_an_error_of_the_device_is_no_row_error(error: RuntimeError) -> None:
    def raising(hidden: torch.Tensor, slot: int) -> torch.Tensor:
        raise error

    scores = PromptLogprobs(9, VOCAB)
    scores.admit(wanting(0, (5, 6, 7)))
    with pytest.raises(type(error), match=str(error)):
        scores.compute(plan_of((0, 0, 3)), states(3), raising)

"""InFlightStep: its columns as rows, and the grammars of the sequences whose samples wait for a token mask."""

from typing import Any, cast

import numpy as np

from chairlift.core.request import GenerateRequest
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.scheduler.in_flight_step import InFlightStep, StepRow
from chairlift.engine.sequence import Sequence, SequenceStatus
from chairlift.engine.step_plan import StepPlan

NONE = np.empty(0, np.int32)
PLAN = StepPlan(0, (), (), NONE, NONE, NONE, np.empty((0, 4), np.int32), NONE, NONE)


def make_sequence(arrival_index: int, grammar: str | None = None) -> Sequence:
    """Make a sequence; a text stands in for its grammar."""
    params = SamplingParams(max_tokens=4).with_defaults({}, max_tokens=1, seed=0)
    request = GenerateRequest(prompt_token_ids=(1, 2, 3), params=params, request_id=str(arrival_index))
    return Sequence(request, arrival_index, b"root", 0.0, grammar=cast("Any", grammar))


def test_rows_are_the_columns() -> None:
    decoding, prefilling = make_sequence(0), make_sequence(1)
    step = InFlightStep(PLAN, [decoding, prefilling], [0, 2], [5, 0], [6, 3], [0, -1], 1, 3, 0.0)
    assert step.rows == [StepRow(decoding, 0, 5, 6, 0), StepRow(prefilling, 2, 0, 3, -1)]


def test_grammars_are_those_of_unfinished_sequences_in_order() -> None:
    first, finished, last = make_sequence(0, "first"), make_sequence(1, "finished"), make_sequence(2, "last")
    finished.status = SequenceStatus.FINISHED
    step = InFlightStep(
        PLAN, [], [], [], [], [], 0, 0, 0.0, masked_by=tuple((each, each.grammar) for each in (last, finished, first))
    )
    assert step.open_grammars == ["last", "first"]

"""GenerationOutput: transformers' fields, snapshots that never change, and no copies of what is not read."""

import dataclasses
import inspect

from transformers.generation.continuous_batching.requests import GenerationOutput as Theirs

from chairlift.llm.transformers_compat.generation_output import GenerationOutput
from chairlift.llm.transformers_compat.request_status import RequestStatus
from support_shares import for_each


def test_it_has_the_fields_of_transformers_in_their_order() -> None:
    names = [field.name for field in dataclasses.fields(Theirs)]
    assert list(inspect.signature(GenerationOutput).parameters)[: len(names)] == names
    output, theirs = GenerationOutput("r"), Theirs("r")
    for name in set(names) - {"created_time"}:
        assert getattr(output, name) == getattr(theirs, name), name


def test_an_output_sees_the_beginning_of_lists_that_grow() -> None:
    tokens, logprobs, times = [1, 2], [-0.1, -0.2], [5.0, 6.0]
    first = GenerationOutput("r", [7], tokens, logprobs, timestamps=times, num_tokens=2)
    unread = GenerationOutput("r", [7], tokens, num_tokens=2)
    shown = first.generated_tokens
    tokens.append(3)
    assert shown == [1, 2]
    logprobs.append(-0.3)
    times.append(7.0)
    second = GenerationOutput("r", [7], tokens, logprobs, timestamps=times, num_tokens=3)
    assert (first.generated_tokens, first.logprobs, first.timestamps) == ([1, 2], [-0.1, -0.2], [5.0, 6.0])
    assert second.generated_tokens == [1, 2, 3]
    assert unread.generated_tokens == [1, 2]
    first.generated_tokens.append(9)
    assert tokens == [1, 2, 3] and first.generated_tokens == [1, 2, 9]


@for_each("status", RequestStatus)
def test_the_ends_are_finished(status: RequestStatus) -> None:
    assert GenerationOutput("r", status=status).is_finished() == (status >= RequestStatus.FINISHED)


def test_equality_and_text() -> None:
    one, same = (GenerationOutput("r", [1], [2], created_time=3.0) for _ in range(2))
    assert one == same and one != GenerationOutput("r", [1], [3], created_time=3.0) and one != "r"
    assert "request_id='r'" in repr(one) and "[2]" in repr(one)

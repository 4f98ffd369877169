"""RequestStatus has transformers' numbers, and one more end."""

from transformers.generation.continuous_batching import RequestStatus as Theirs

from chairlift.llm.transformers_compat.request_status import RequestStatus


def test_the_numbers_are_those_of_transformers() -> None:
    assert {status.name: int(status) for status in Theirs}.items() <= {s.name: int(s) for s in RequestStatus}.items()
    assert RequestStatus.CANCELLED > RequestStatus.FAILED > RequestStatus.FINISHED

"""Workload: its sums, and a digest that changes with any change of a request."""

from dataclasses import replace

from chairlift.bench.workload.workload import Workload, WorkloadRequest
from support_shares import for_each

ITEM = WorkloadRequest(at=0.0, prompt_token_ids=(1, 2, 3), output_tokens=4)
TWO = Workload(name="x", seed=1, items=(ITEM, replace(ITEM, output_tokens=6)))


def test_tokens_are_those_of_all_requests() -> None:
    assert (TWO.prompt_tokens, TWO.output_tokens) == (6, 10)


def test_equal_work_has_an_equal_digest_whatever_it_is_called() -> None:
    assert replace(TWO, name="y", seed=2).digest() == TWO.digest()


@for_each(
    "change",
    [{"at": 0.5}, {"prompt_token_ids": (1, 2, 4)}, {"output_tokens": 5}, {"tenant": "a"}, {"priority": 1},
     {"timeout": 2.0}],
)  # fmt: skip
def test_any_change_of_a_request_changes_the_digest(change: dict[str, object]) -> None:
    assert replace(TWO, items=(replace(ITEM, **change), TWO.items[1])).digest() != TWO.digest()


def test_the_order_counts() -> None:
    assert replace(TWO, items=TWO.items[::-1]).digest() != TWO.digest()

"""What a replica without data does to a need."""

from chairlift.autoscaler.rules.base import with_missing
from support_shares import for_each


@for_each(
    ("need", "num_missing", "result"),
    [(3.0, 0, 3.0), (3.0, 2, 5.0), (3.0, 7, 10.0), (3.0, 9, 10.0), (12.0, 4, 12.0), (0.0, 10, 10.0)],
)
def test_replicas_without_data_neither_grow_nor_shrink_a_pool_of_ten(
    need: float, num_missing: int, result: float
) -> None:
    assert with_missing(need, num_missing, 10) == result

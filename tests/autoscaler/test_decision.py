"""Decision: whether the pool is to change."""

from chairlift.autoscaler.decision import Decision


def test_a_change_is_another_number_of_replicas() -> None:
    assert Decision(at_seconds=0, target=2, current=1).has_change
    assert not Decision(at_seconds=0, target=2, current=2).has_change

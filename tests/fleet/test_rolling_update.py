"""plan_update: replicas are replaced one by one, and within the budget."""

import pytest

from chairlift.autoscaler.pool_sample import ReplicaSample
from chairlift.core.load_report import ReplicaState
from chairlift.fleet.rolling_update import UpdateStep, plan_update
from support_shares import for_each

READY, STARTING, DRAINING = ReplicaState.READY, ReplicaState.STARTING, ReplicaState.DRAINING


def replica(name: str, state: ReplicaState, running: float = 0.0) -> ReplicaSample:
    """Return a replica; its version is o or n, with which its name begins."""
    return ReplicaSample(replica_id=name, state=state, version=name[0], running_requests=running)


@for_each(("replicas", "target", "most", "step"), [
    ([], 0, 4, UpdateStep(is_complete=True)),
    ([], 2, 4, UpdateStep(num_new=1)),
    ([("o1", DRAINING)], 1, 2, UpdateStep(num_new=1)),
    ([("n1", STARTING)], 1, 2, UpdateStep()),
    ([("n1", STARTING)], 0, 2, UpdateStep(is_complete=True)),
    ([("o1", READY), ("o2", READY), ("n1", STARTING)], 1, 3, UpdateStep(remove=("o1",))),
    ([("o1", READY), ("n1", STARTING)], 0, 3, UpdateStep(remove=("o1",))),
    ([("n1", READY), ("n2", READY)], 2, 4, UpdateStep(is_complete=True)),
    ([("n1", READY), ("o1", DRAINING)], 1, 4, UpdateStep()),
    ([("o1", READY), ("o2", READY)], 2, 3, UpdateStep(num_new=1)),
    ([("o1", READY), ("o2", READY), ("n1", STARTING)], 2, 3, UpdateStep()),
    ([("o1", READY), ("o2", READY), ("n1", READY)], 2, 3, UpdateStep(remove=("o1",))),
    ([("o1", DRAINING), ("o2", READY), ("n1", READY)], 2, 3, UpdateStep()),
    ([("o2", READY), ("n1", READY)], 2, 3, UpdateStep(num_new=1)),
    ([("o1", READY), ("o2", READY)], 2, 2, UpdateStep(remove=("o1",))),
    ([("o1", DRAINING), ("o2", READY)], 2, 2, UpdateStep()),
    ([("o1", STARTING), ("o2", READY)], 2, 4, UpdateStep(remove=("o1",))),
    ([("o1", READY)], 1, 1, UpdateStep(remove=("o1",))),
    ([("o1", READY), ("o2", READY)], 1, 4, UpdateStep(remove=("o1",))),
])  # fmt: skip
def test_each_step(replicas: list[tuple[str, ReplicaState]], target: int, most: int, step: UpdateStep) -> None:
    assert plan_update([replica(*each) for each in replicas], "n", target, most - len(replicas)) == step


@pytest.mark.parametrize(("replicas", "target", "room", "step"), [
    ([("k1", STARTING), ("k2", READY)], 2, 1, UpdateStep(num_new=1)),
    ([("k1", STARTING), ("k2", READY)], 2, 0, UpdateStep(remove=("k1",))),
    ([("k1", STARTING), ("o1", STARTING)], 2, 1, UpdateStep(remove=("o1",))),
    ([("k1", STARTING), ("k2", READY), ("n1", READY)], 2, 1, UpdateStep(remove=("k1",))),
    ([("k1", STARTING)], 0, 1, UpdateStep(remove=("k1",))),
])  # fmt: skip
def test_replicas_of_a_version_that_is_kept_may_start(
    replicas: list[tuple[str, ReplicaState]], target: int, room: int, step: UpdateStep
) -> None:
    assert plan_update([replica(*each) for each in replicas], "n", target, room, kept={"k"}) == step


def test_replicas_of_an_unknown_version_are_not_replaced() -> None:
    pool = [ReplicaSample(replica_id="a", state=READY), ReplicaSample(replica_id="b", state=STARTING)]
    assert plan_update(pool, "n", 2, 2) == UpdateStep(is_complete=True)


def test_the_replica_with_the_fewest_requests_goes_first() -> None:
    pool = [replica("o1", READY, 3), replica("o2", READY, 1), replica("n1", READY)]
    assert plan_update(pool, "n", 2, 1).remove == ("o2",)


@for_each("target", [1, 2, 5])
@for_each("room", [0, 1, 3])
def test_an_update_ends_within_the_budget_and_serves_all_the_time(target: int, room: int) -> None:
    pool = {f"o{number}": READY for number in range(target)}
    number = 0
    for _ in range(20 * target):
        step = plan_update([replica(*each) for each in pool.items()], "n", target, target + room - len(pool))
        if step.is_complete:
            break
        for name, state in list(pool.items()):
            if state is DRAINING:
                del pool[name]
            elif state is STARTING:
                pool[name] = READY
        for _ in range(step.num_new):
            pool[f"n{number}"], number = STARTING, number + 1
        for name in step.remove:
            pool[name] = DRAINING
        assert len(pool) <= target + room
        assert sum(state is READY for state in pool.values()) >= (target if room else target - 1)
    assert set(pool) == {f"n{each}" for each in range(target)} if room else 1 <= len(pool) <= target
    assert {name[0] for name in pool} == {"n"}

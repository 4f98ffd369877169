"""PoolLimits: how many replicas may be started beside those that there are."""

from chairlift.autoscaler.config import BudgetConfig
from chairlift.autoscaler.pool_sample import ReplicaSample
from chairlift.core.load_report import ReplicaState
from chairlift.fleet.pool_limits import PoolLimits
from support_shares import for_each

READY, DRAINING = ReplicaState.READY, ReplicaState.DRAINING


@for_each(("states", "cost", "room"), [
    ([], None, 4), ([READY, DRAINING], None, 2), ([READY] * 6, None, 0), ([READY, DRAINING], 3.9, 1),
    ([READY] * 3, 2.0, 0), ([READY], 100.0, 3),
])  # fmt: skip
def test_the_room_is_what_both_limits_allow(states: list[ReplicaState], cost: float | None, room: int) -> None:
    limits = PoolLimits(max_replicas=4, budget=BudgetConfig(cost_per_hour=cost, prices={"": 1.0}))
    assert limits.room([ReplicaSample(replica_id=str(each), state=each) for each in states]) == room

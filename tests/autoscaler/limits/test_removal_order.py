"""The order of removal: starting, other versions, dearer, idle ones first."""

from chairlift.autoscaler.config import AutoscalerConfig, BudgetConfig
from chairlift.autoscaler.limits.removal_order import removal_order
from support_autoscaler import DRAINING, STARTING, ready, silent

CONFIG = AutoscalerConfig(
    version="v2", budget=BudgetConfig(prices={"small": 1.0, "large": 4.0}, replica_type="small")
)  # fmt: skip


def test_the_order() -> None:
    v2 = {"version": "v2", "replica_type": "small"}
    replicas = [
        ready("busy", **v2, running_requests=5.0),
        silent("unknown", **v2),
        ready("idle", **v2, running_requests=1.0),
        ready("queued", **v2, running_requests=0.0, waiting_requests=3.0),
        ready("dear", version="v2", replica_type="large", running_requests=9.0),
        ready("old", version="v1", replica_type="small", running_requests=9.0),
        silent("gone", DRAINING, **v2),
        silent("young", STARTING, **v2, age_seconds=1.0),
        silent("elder", STARTING, **v2, age_seconds=9.0),
        silent("elder-old", STARTING, version="v1", replica_type="small", age_seconds=90.0),
    ]
    assert [each.replica_id for each in removal_order(replicas, CONFIG)] == [
        "elder-old", "young", "elder", "old", "dear", "idle", "queued", "busy", "unknown",
    ]  # fmt: skip


def test_versions_do_not_count_where_none_is_configured() -> None:
    replicas = [ready("a", version="v1", running_requests=5.0), ready("b", version="v2", running_requests=1.0)]
    assert [each.replica_id for each in removal_order(replicas, AutoscalerConfig())] == ["b", "a"]

"""plan_scale: what is started, stopped and cleared; a version that ends by itself starts ever later."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from chairlift.cluster.cluster_replica import PlacementState
from chairlift.cluster.ray.replica_view import RayReplica
from chairlift.cluster.ray.scale_plan import plan_scale
from support_ray_view import replica
from support_shares import for_each

STATES = {
    "p": PlacementState.PENDING, "r": PlacementState.RUNNING, "s": PlacementState.STOPPING, "f": PlacementState.FAILED,
}  # fmt: skip


def replicas_of(states: str) -> list[RayReplica]:
    """Make a replica for each character of `states`; later ones are younger."""
    return [replica(number, STATES[state]) for number, state in enumerate(states, 1)]


def numbers(replicas: tuple[RayReplica, ...]) -> list[int]:
    return [each.name.number for each in replicas]


@for_each(
    ("states", "target", "remove", "clear", "stop", "num_start"),
    [
        ("", 2, [], [], [], 2),
        ("rr", 2, [], [], [], 0),
        ("rp", 3, [], [], [], 1),
        ("rs", 2, [], [], [], 1),  # one that stops does not count
        ("rf", 2, [], [2], [], 1),
        ("rrr", 1, [], [], [3, 2], 0),  # the youngest first
        ("prr", 1, [], [], [1, 3], 0),  # pending ones before running ones
        ("rrr", 2, [1], [], [1], 0),
        ("rrr", 1, [1], [], [1, 3], 0),
        ("rrr", 3, [1], [], [1], 1),  # one is replaced
        ("srr", 2, [1], [], [], 0),  # the same call again
        ("rfs", 0, [9], [2], [1], 0),
    ],
)
def test_the_plan(
    states: str, target: int, remove: list[int], clear: list[int], stop: list[int], num_start: int
) -> None:
    plan = plan_scale(replicas_of(states), target, [f"a-{number}-t" for number in remove])
    assert (numbers(plan.clear), numbers(plan.stop), plan.num_start) == (clear, stop, num_start)


@given(st.text("prsf", max_size=12), st.integers(0, 12), st.sets(st.integers(1, 12)))
def test_after_a_plan_the_same_call_changes_nothing(states: str, target: int, remove: set[int]) -> None:
    before, ids = replicas_of(states), [f"a-{number}-t" for number in remove]
    plan = plan_scale(before, target, ids)
    stopped = [
        RayReplica(each.name, replace(each.replica, state=PlacementState.STOPPING)) if each in plan.stop else each
        for each in before
        if each not in plan.clear
    ]
    after = [*stopped, *(replica(100 + index, PlacementState.PENDING) for index in range(plan.num_start))]
    again = plan_scale(after, target, ids)
    assert (again.clear, again.stop, again.num_start) == ((), (), 0)
    assert sum(each.replica.state in (PlacementState.PENDING, PlacementState.RUNNING) for each in after) == target


def test_one_whose_stop_hangs_is_cleared() -> None:
    hanging = replace(replica(1, PlacementState.STOPPING), is_overdue=True)
    assert plan_scale([hanging], 0, []).clear == (hanging,)

"""CrashLoopBackoff: delays new starts of a version whose processes end by themselves.

Such a version starts again later and later, and not at all in a crash loop.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from chairlift.cluster.cluster_replica import PlacementState
from chairlift.cluster.ray.replica_view import RayReplica

FIRST_DELAY_SECONDS = 1.0

MAX_DELAY_SECONDS = 120.0
"""Delay before the next start, which doubles with each replica that ended by itself."""

STABLE_SECONDS = 120.0
"""A version with a replica that has run for this long starts without delay again."""

MAX_FAILURES = 5
"""Times in a row that replicas of a version ended without ever serving, after which none is started."""


@dataclass(slots=True)
class CrashLoopBackoff:
    """When the next replica of a version may start. `now` is monotonic."""

    _failures: dict[str, int] = field(default_factory=dict)
    _not_before: dict[str, float] = field(default_factory=dict)
    _num_unserved: dict[str, int] = field(default_factory=dict)

    def record(
        self, replicas: Sequence[RayReplica], cleared: Collection[RayReplica], now: float,
        served: Collection[str] = (),
    ) -> None:  # fmt: skip
        """Note which replicas run for long, and those that ended by themselves and are cleared away now.

        `served` are the ids of the replicas that have served once.
        """
        for each in replicas:
            if each.replica.replica_id in served:
                self._num_unserved.pop(each.replica.version, None)
            if each.replica.state is PlacementState.RUNNING and each.replica.age_seconds > STABLE_SECONDS:
                self._failures.pop(each.replica.version, None)
                self._not_before.pop(each.replica.version, None)
        for version in {each.replica.version for each in cleared if each.is_own_failure}:
            failures = self._failures.get(version, 0) + 1
            self._failures[version] = failures
            if all(each.replica.replica_id not in served for each in cleared if each.replica.version == version):
                self._num_unserved[version] = self._num_unserved.get(version, 0) + 1
            delay = min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(failures - 1, 30))
            self._not_before[version] = now + delay

    def seconds_left(self, version: str, now: float) -> float:
        """Return the seconds until a replica of this version may start, 0 if it may now."""
        return max(0.0, self._not_before.get(version, now) - now)

    def is_crash_loop(self, version: str) -> bool:
        """Return whether no replica of this version is started any more."""
        return self._num_unserved.get(version, 0) >= MAX_FAILURES

    def release(self) -> None:
        """Let all versions start at once, as after their first start."""
        self._failures.clear()
        self._not_before.clear()
        self._num_unserved.clear()

"""HealthMetrics: publishes states, ejections, probes and notifications as metrics of the router."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from chairlift.observability.metrics import Metrics
from chairlift.router.health.health_state import HealthState, Transition


class ReplicaCounts(Protocol):
    """The replica set, as its metrics see it.

    Attributes:
        num_suppressed_ejections: ejections that the limit of half a pool has prevented.
        num_panic_picks: picks while no replica of the pool was healthy.
    """

    num_suppressed_ejections: int
    num_panic_picks: int

    def num_by_state(self) -> Mapping[HealthState, int]:
        """Return the number of replicas in each state."""
        ...

    def open_requests(self) -> Mapping[str, int]:
        """Return the number of open requests of each replica."""
        ...


class ProbeCounts(Protocol):
    """The prober, as its metrics see it."""

    num_probes: int
    num_failed_probes: int


class NotificationCounts(Protocol):
    """The notifier, as its metrics see it."""

    num_sent: int
    num_failed: int
    num_dropped: int


class HealthMetrics:
    """Counts transitions as they happen, and reads counts when `update` is called."""

    def __init__(
        self, metrics: Metrics, replicas: ReplicaCounts, probes: ProbeCounts | None = None,
        notifications: NotificationCounts | None = None,
    ) -> None:  # fmt: skip
        self._metrics, self._replicas = metrics, replicas
        self._probes, self._notifications = probes, notifications
        self._replica_ids: set[str] = set()

    def on_transition(self, transition: Transition) -> None:
        """Count a transition and an ejection."""
        self._metrics.counter("router_replica_transitions", transition.new).inc()
        if transition.new is HealthState.EJECTED:
            self._metrics.counter("router_ejections", transition.cause).inc()

    def on_restart(self, replica_id: str, incarnation: str) -> None:
        """Count a new process of a replica."""
        self._metrics.counter("router_replica_restarts", replica_id).inc()

    def update(self) -> None:
        """Set the gauges and add what was counted since the last call; call it at a fixed interval."""
        for state, number in self._replicas.num_by_state().items():
            self._metrics.gauge("router_replicas", state).set(number)
        open_requests = self._replicas.open_requests()
        for replica_id, number in open_requests.items():
            self._metrics.gauge("router_replica_open_requests", replica_id).set(number)
            self._metrics.counter("router_replica_restarts", replica_id)  # at zero, so that the first restart counts
        for replica_id in self._replica_ids - open_requests.keys():
            self._metrics.remove("router_replica_open_requests", replica_id)
            self._metrics.remove("router_replica_restarts", replica_id)
        self._replica_ids = set(open_requests)
        for name, *labels, count in self._counts():
            self._metrics.raise_to(int(count), str(name), *map(str, labels))

    def _counts(self) -> Iterator[tuple[str | int, ...]]:
        yield "router_ejections_suppressed", self._replicas.num_suppressed_ejections
        yield "router_panic_picks", self._replicas.num_panic_picks
        if (probes := self._probes) is not None:
            yield "router_probes", "success", probes.num_probes - probes.num_failed_probes
            yield "router_probes", "failure", probes.num_failed_probes
        if (notifications := self._notifications) is not None:
            yield "router_notifications", "sent", notifications.num_sent
            yield "router_notifications", "failed", notifications.num_failed
            yield "router_notifications", "dropped", notifications.num_dropped

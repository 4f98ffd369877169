"""HealthMetrics: states, ejections, restarts, probes and notifications as metrics; none of removed replicas."""

from types import SimpleNamespace

from prometheus_client.parser import text_string_to_metric_families

from chairlift.observability.metrics import ROUTER_METRICS, Metrics
from chairlift.router.health.breaker import HealthOutcome
from chairlift.router.health.health_metrics import HealthMetrics
from chairlift.router.health.replica_load import parse_load
from support_replica_set import endpoints, new_set, pick, probed, url


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Return every sample of the router that is not zero, by name and labels."""
    return {
        (sample.name.removeprefix("chairlift_router_"), *sample.labels.values()): sample.value
        for metric in text_string_to_metric_families(metrics.render().decode())
        for sample in metric.samples
        if sample.name.startswith("chairlift_router_") and sample.value
    }


def test_states_ejections_and_open_requests_are_published() -> None:
    metrics, (replica_set, _) = Metrics(ROUTER_METRICS), new_set("abc")
    health = HealthMetrics(metrics, replica_set)
    replica_set.listeners.append(health)
    replica_set.restart_listeners.append(health.on_restart)
    for name in "ab":
        for _ in range(3):
            with pick(replica_set, only=name) as reservation:
                reservation.record(HealthOutcome.FAULT, 0.0)
    for instance in ("p1", "p2"):
        replica_set.apply_probe(url("c"), probed(load=parse_load({"instance_id": instance}, 0.0)), 0.0)
    kept = pick(replica_set, only="c")
    health.update()
    health.update()
    assert samples(metrics) == {
        ("replicas", "ejected"): 1, ("replicas", "healthy"): 2, ("replica_open_requests", url("c")): 1,
        ("replica_transitions_total", "ejected"): 1, ("ejections_total", "consecutive_faults"): 1,
        ("ejections_suppressed_total",): 1, ("replica_restarts_total", url("c")): 1,
    }  # fmt: skip
    for name in "bc":
        replica_set.drain(url(name), 1.0)
    pick(replica_set, 1.0).release()
    health.update()
    assert samples(metrics)["panic_picks_total",] == 1
    kept.release()


def test_a_removed_replica_has_no_metrics() -> None:
    metrics, (replica_set, _) = Metrics(ROUTER_METRICS), new_set("ab")
    health = HealthMetrics(metrics, replica_set)
    kept = pick(replica_set, only="a")
    health.update()
    replica_set.update(endpoints("b"), 1.0)
    health.update()
    assert samples(metrics)["replica_open_requests", url("a")] == 1, "it still has a request"
    for name in "ab":  # at zero before the first restart
        assert f'chairlift_router_replica_restarts_total{{replica="{url(name)}"}} 0.0' in metrics.render().decode()
    kept.release()
    health.update()
    page = metrics.render().decode()
    assert url("a") not in page and url("b") in page


def test_probes_and_notifications_are_counted_as_differences() -> None:
    metrics, (replica_set, _) = Metrics(ROUTER_METRICS), new_set("a")
    probes = SimpleNamespace(num_probes=7, num_failed_probes=2)
    notifications = SimpleNamespace(num_sent=3, num_failed=1, num_dropped=0)
    health = HealthMetrics(metrics, replica_set, probes, notifications)
    health.update()
    probes.num_probes, notifications.num_dropped = 9, 4
    health.update()
    found = samples(metrics)
    assert (found["probes_total", "success"], found["probes_total", "failure"]) == (7, 2)
    assert [found["notifications_total", each] for each in ("sent", "failed", "dropped")] == [3, 1, 4]

"""LoadWindow: means over what is known, the time of a request by Little's law, demand and backlog."""

import pytest

from chairlift.autoscaler.pool_load import Quantity
from support_autoscaler import pool, ready, replicas_of, silent, window_of


def test_means_are_of_the_samples_that_have_the_value() -> None:
    window = window_of(
        pool(0, ready("a", running_requests=2.0)), pool(2, silent("a")), pool(4, ready("a", running_requests=6.0)),
    )  # fmt: skip
    assert window.mean("running_requests") == Quantity(4.0, 0)
    assert window_of(pool(0, silent("a"))).mean("running_requests") is None
    assert window.mean_ready() == 1
    assert window_of(pool(0, ttft_seconds=1.0), pool(2), pool(4, ttft_seconds=2.0)).pool_mean("ttft_seconds") == 1.5
    assert window_of(pool(0)).pool_mean("ttft_seconds") is None
    assert window_of(pool(0)).pool_mean("external:unknown") is None


def test_the_time_of_a_request_is_open_requests_by_rate_in_a_calm_pool() -> None:
    calm = [pool(at, *replicas_of(2, running_requests=10.0), requests_per_second=4.0) for at in (0, 30, 60)]
    assert window_of(*calm).calm_service_seconds(1.0) == 5.0
    growing = [pool(at, *replicas_of(2, running_requests=at), requests_per_second=4.0) for at in (10, 30, 60)]
    assert window_of(*growing).calm_service_seconds(1.0) is None
    waiting = [pool(at, *replicas_of(2, waiting_requests=10.0), requests_per_second=4.0) for at in (0, 30)]
    assert window_of(*waiting).calm_service_seconds(1.0) is None
    assert window_of(*(pool(at, *replicas_of(2)) for at in (0, 30))).calm_service_seconds(1.0) is None
    assert window_of(calm[0]).calm_service_seconds(1.0) is None


def test_demand_is_what_runs_and_waits_normally() -> None:
    window = window_of(pool(0, ready("a", running_requests=6.0, waiting_requests=3.0), requests_per_second=4.0))
    assert window.demand_requests(1.0) == 9.0
    assert window.backlog_requests(1.0) == 0.0


def test_full_replicas_do_not_hide_the_demand() -> None:
    full = pool(0, ready("a", running_requests=10.0, waiting_requests=100.0), requests_per_second=40.0)
    window = window_of(full, service_seconds=2.0, drain_seconds=60.0)
    assert window.demand_requests(1.0) == 80.0
    assert window.backlog_requests(1.0) == pytest.approx((100 - 40) * 2 / 60)


def test_without_a_known_time_all_that_wait_count() -> None:
    window = window_of(pool(0, ready("a", running_requests=10.0, waiting_requests=100.0), held_requests=20.0))
    assert window.demand_requests(1.0) + window.backlog_requests(1.0) == 130.0


def test_a_burst_counts_before_its_requests_run_if_enough_have_come() -> None:
    def demand(rate: float) -> float:
        samples = [pool(at, ready("a", running_requests=1.0), requests_per_second=rate) for at in (0, 3, 6)]
        return window_of(*samples, service_seconds=30.0).demand_requests(1.0)

    assert demand(0.5) == pytest.approx(1.0)  # three arrivals may be chance
    assert demand(100.0) == pytest.approx((600 - 2 * 600**0.5) / 6 * 30)

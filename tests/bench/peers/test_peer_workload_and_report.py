"""cpus(): as many cores as the parent's OMP_NUM_THREADS allows, and at least one without it."""

import pytest

from chairlift.bench.peers import peer_workload_and_report


def test_threads_are_those_that_the_parent_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert len(peer_workload_and_report.cpus()) == 1
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert len(peer_workload_and_report.cpus()) >= 1

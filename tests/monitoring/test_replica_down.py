"""ReplicaDown fired for real: a killed replica, seen by Prometheus, reported by Alertmanager to its webhook."""

from pathlib import Path

import pytest

from support_prometheus import RUNBOOKS, AlertReceiver, alertmanager, prometheus
from support_server import fake_server
from support_services_processes import free_port


@pytest.mark.full
def test_a_killed_replica_is_reported_and_its_return_too(tmp_path: Path) -> None:
    port = free_port()
    with AlertReceiver() as receiver, alertmanager(tmp_path, receiver) as address:
        jobs = {"chairlift-replica": [f"http://127.0.0.1:{port}"]}
        with fake_server(port=port) as replica, prometheus(tmp_path, jobs, address) as server:
            server.wait_for('up{job="chairlift-replica"} == 1')
            replica.process.kill()
            receiver.wait_for("firing", "ReplicaDown")
            alert = receiver.find("ReplicaDown")
            assert alert["labels"]["severity"] == "critical" and "runbooks" not in alert["labels"]
            assert alert["annotations"]["summary"] == f"Replica 127.0.0.1:{port} does not answer"
            assert alert["annotations"]["runbook_url"] == f"{RUNBOOKS}/replica-down.md"
            with fake_server(port=port):
                receiver.wait_for("resolved", "ReplicaDown")

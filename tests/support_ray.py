"""Ray for tests: a head and further nodes with one CPU each, as processes of this machine.

Tests that need it are skipped without ray; with CHAIRLIFT_REQUIRE_SERVICES=1 they fail instead.
"""

import asyncio
import importlib.util
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from chairlift.cluster.base import ReplicaSpec
from chairlift.cluster.cluster_replica import ClusterReplica, PlacementState
from chairlift.cluster.ray.cluster import RayCluster
from chairlift.cluster.ray.config import RayConfig
from chairlift.engine.runner.fake_model import FakeConfig
from support_process import TIMEOUT_SECONDS
from support_services_processes import free_port

TESTS = Path(__file__).parent
FAKE_REPLICA = (sys.executable, str(TESTS / "support_ray_replica.py"))

OBJECT_STORE = 80 * 2**20
FAST_HEALTH = {
    "health_check_initial_delay_ms": 500, "health_check_period_ms": 500, "health_check_failure_threshold": 3,
}  # fmt: skip
"""A killed node is dead for Ray after 1.5 s, and not after 15 s as by default."""


def require_ray() -> None:
    """Skip the test without ray, or fail it with CHAIRLIFT_REQUIRE_SERVICES=1."""
    if importlib.util.find_spec("ray") is None:
        reason = 'ray is not installed (pip install "chairlift[ray]")'
        if os.environ.get("CHAIRLIFT_REQUIRE_SERVICES") == "1":
            pytest.fail(reason)
        pytest.skip(reason)


class RayNodes:
    """A Ray cluster of this machine whose nodes can be added and killed."""

    def __init__(self, num_nodes: int) -> None:
        from ray.cluster_utils import Cluster

        self.client_port = free_port()
        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 1, "object_store_memory": OBJECT_STORE, "include_dashboard": False,
                "ray_client_server_port": self.client_port, "_system_config": FAST_HEALTH,
            },
        )  # fmt: skip
        self.address: str = self._cluster.address
        self.head_id: str = self._cluster.head_node.node_id
        self.nodes: list[Any] = []
        """The nodes that can be killed: all but the head."""

        for _ in range(num_nodes - 1):
            self.add(wait=False)
        self._cluster.wait_for_nodes(TIMEOUT_SECONDS)

    def add(self, num_cpus: int = 1, *, wait: bool = True) -> Any:
        """Add a node, and wait until Ray knows it."""
        node = self._cluster.add_node(num_cpus=num_cpus, object_store_memory=OBJECT_STORE, wait=wait)
        self.nodes.append(node)
        return node

    def kill(self, node_id: str) -> None:
        """Kill all processes of a node with SIGKILL, as a power failure does; `node_id` may be its start."""
        node = next(node for node in self.nodes if node.node_id.startswith(node_id))
        self.nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        self._cluster.shutdown()


@contextmanager
def ray_nodes(num_nodes: int = 3) -> Iterator[RayNodes]:
    """Start a Ray cluster whose workers find Chairlift and the tests' modules."""
    require_ray()
    changed = {
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")]),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    nodes = None
    try:
        nodes = RayNodes(num_nodes)
        yield nodes
    finally:
        if nodes is not None:
            nodes.close()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def config_of(nodes: RayNodes, fleet: str, **options: Any) -> RayConfig:
    """Return the options of a fleet of fake replicas on these nodes."""
    fields = {"host": "127.0.0.1", "command": FAKE_REPLICA, "stop_timeout_seconds": 5.0, **options}
    return RayConfig(fleet=fleet, address=nodes.address, **fields)


@asynccontextmanager
async def ray_fleet(nodes: RayNodes, fleet: str, **options: Any) -> AsyncIterator[RayCluster]:
    """Open a fleet of fake replicas, and remove all of them at the end."""
    cluster = RayCluster(config_of(nodes, fleet, **options))
    try:
        yield cluster
        await remove_all(cluster)
    finally:
        await cluster.close()


async def remove_all(cluster: RayCluster) -> None:
    await cluster.stop([each.replica_id for each in await cluster.list()])
    await wait_for_replicas(cluster, lambda replicas: not [each for each in replicas if not is_failed(each)])


def engine_spec(config: FakeConfig) -> ReplicaSpec:
    """Return the spec of a whole server over a fake engine, for a fleet of ray_fleet."""
    return ReplicaSpec(num_cpus=1, environ={"FAKE_ENGINE": json.dumps({"fake": asdict(config)})})


def is_failed(replica: ClusterReplica) -> bool:
    return replica.state is PlacementState.FAILED


def serving(replicas: Sequence[ClusterReplica]) -> list[ClusterReplica]:
    """Return the replicas that run and have a URL."""
    return [each for each in replicas if each.state is PlacementState.RUNNING and each.url]


async def wait_for_replicas(
    cluster: RayCluster, condition: Callable[[list[ClusterReplica]], bool]
) -> list[ClusterReplica]:
    """Wait until a condition holds for the replicas, and return them; fails after a minute."""
    replicas: list[ClusterReplica] = []
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while True:
                replicas = list(await cluster.list())
                if condition(replicas):
                    return replicas
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"the condition is still false: {replicas}") from None

"""Placement: ports that are free, disjoint sets of CPUs while there are enough, GPUs that are never shared."""

import socket
from collections.abc import Iterator

import pytest

from chairlift.cluster.local.placement import choose_cpus, choose_gpus, choose_port, describe_cpus
from chairlift.core.cluster_errors import ClusterFailed

HOST = "127.0.0.1"


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.create_server((HOST, 0)) as server:
        yield server.getsockname()[1]


def test_a_port_of_the_system_is_free_and_not_one_of_another_replica() -> None:
    port = choose_port(HOST, None, (), ())
    with socket.create_server((HOST, port)):
        pass
    assert choose_port(HOST, None, {port}, ()) != port


def test_a_port_of_the_range_is_one_that_nothing_listens_on(busy_port: int) -> None:
    with pytest.raises(ClusterFailed, match=f"no port of {busy_port} to {busy_port} is free"):
        choose_port(HOST, (busy_port, busy_port), (), ())


def test_a_port_of_another_replica_is_not_taken_and_one_that_failed_is_the_last() -> None:
    free = [choose_port(HOST, None, (), ())]
    low, high = free[0], min(free[0] + 30, 65_535)
    for _ in range(5):
        port = choose_port(HOST, (low, high), (), {low})
        assert low < port <= high
    others = set(range(low + 1, high + 1))
    assert choose_port(HOST, (low, high), others, {low}) == low


def test_sets_of_cpus_are_disjoint_while_there_are_enough() -> None:
    taken: list[tuple[int, ...]] = []
    for _ in range(4):
        taken.append(choose_cpus(2, {4, 5, 6, 7, 0, 1}, taken))
    assert taken == [(0, 1), (4, 5), (6, 7), (0, 1)]
    assert choose_cpus(3, {0, 1, 4, 5, 6, 7}, taken) == (4, 5, 6)


def test_zero_cpus_are_all_of_them() -> None:
    assert choose_cpus(0, {0, 1}, [(0,)]) == ()
    assert describe_cpus(0, (), [(0,)]) == ""


def test_shared_and_missing_cpus_are_said() -> None:
    assert describe_cpus(1, (0,), [(1,), ()]) == ""
    assert describe_cpus(1, (0,), [(0, 1), (1,)]) == "it shares the CPUs 0 with 1 other replica"
    cpus = choose_cpus(4, {0, 1}, [])
    text = describe_cpus(4, cpus, [(0,), (1,)])
    assert "asks for 4 CPUs and has all 2 usable ones" in text and "0, 1 with 2 other replicas" in text


def test_gpus_are_not_shared() -> None:
    assert choose_gpus(0, ("a",), []) == ()
    assert choose_gpus(2, ("a", "b", "c"), [("b",)]) == ("a", "c")
    with pytest.raises(ClusterFailed, match="needs 2 GPUs and 1 of 3 are free"):
        choose_gpus(2, ("a", "b", "c"), [("b",), ("a",)])

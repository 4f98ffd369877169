"""ReplicaSpecs of local replicas: without GPUs they see none that are given out; impossible ones are refused."""

import os
from pathlib import Path

import pytest

from chairlift.cluster.base import ReplicaSpec
from chairlift.core.cluster_errors import ClusterFailed
from support_local_cluster import SPEC, alive, open_replicas
from support_process import wait_until


@pytest.mark.parametrize(("gpus", "visible"), [(("GPU-a",), ""), ((), "x")])
def test_a_replica_without_gpus_sees_none_where_gpus_are_given_out(
    folder: Path, gpus: tuple[str, ...], visible: str
) -> None:
    command = ("sh", "-c", 'echo "<$CUDA_VISIBLE_DEVICES>"; exec sleep 600', "replica")
    with open_replicas(folder, command, gpus=gpus, environ={**os.environ, "CUDA_VISIBLE_DEVICES": "x"}) as replicas:
        replicas.start(SPEC, 1)
        log = folder / "replicas" / alive(replicas)[0].replica_id / "log"
        wait_until(lambda: log.exists() and log.read_text() == f"<{visible}>\n", 20)


@pytest.mark.parametrize("spec", [
    ReplicaSpec(model="a\0b"), ReplicaSpec(environ={"A=B": "x"}), ReplicaSpec(arguments=("\ud800",)),
])  # fmt: skip
def test_a_spec_that_no_process_can_have_is_an_error_and_leaves_nothing(folder: Path, spec: ReplicaSpec) -> None:
    with open_replicas(folder) as replicas:
        for _ in range(2):
            with pytest.raises(ClusterFailed, match="no process can have the model, options or environment"):
                replicas.scale(spec, 1, ())
        assert replicas.records == [] and list((folder / "replicas").iterdir()) == []
        replicas.scale(SPEC, 1, ())
        assert len(alive(replicas)) == 1

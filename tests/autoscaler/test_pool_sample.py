"""PoolSample: counts of replicas by state."""

from chairlift.autoscaler.pool_sample import PoolSample, ReplicaSample
from chairlift.core.load_report import ReplicaState


def test_replicas_are_counted_by_state() -> None:
    states = [ReplicaState.READY, ReplicaState.STARTING, ReplicaState.READY, ReplicaState.DRAINING]
    replicas = tuple(ReplicaSample(replica_id=str(number), state=each) for number, each in enumerate(states))
    sample = PoolSample(at_seconds=1.0, replicas=replicas)
    assert sample.num_in_state(ReplicaState.READY) == 2
    assert sample.num_in_state(ReplicaState.READY, ReplicaState.STARTING) == 3
    assert sample.num_in_state(ReplicaState.DEAD) == 0

"""ReplicaSpec: equal specs have one version, and each field changes it."""

from dataclasses import replace

from chairlift.cluster.base import ReplicaSpec


def test_the_version_depends_on_every_field_and_on_nothing_else() -> None:
    spec = ReplicaSpec(model="m", arguments=("--dtype", "float32"), environ={"A": "1", "B": "2"})
    assert spec.version == replace(spec, environ={"B": "2", "A": "1"}).version
    others = [
        replace(spec, model="n"), replace(spec, arguments=()), replace(spec, environ={"A": "1"}),
        replace(spec, num_cpus=1), replace(spec, num_gpus=1), replace(spec, replica_type="large"),
    ]  # fmt: skip
    assert len({each.version for each in [spec, *others]}) == 7

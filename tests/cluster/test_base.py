"""ReplicaSpec: equal specs have one version, and each field changes it; no number is below 0."""

from dataclasses import replace

import pytest

from chairlift.cluster.base import ReplicaSpec
from chairlift.core.errors import ConfigError


def test_the_version_depends_on_every_field_and_on_nothing_else() -> None:
    spec = ReplicaSpec(model="m", arguments=("--dtype", "float32"), environ={"A": "1", "B": "2"})
    assert spec.version == replace(spec, environ={"B": "2", "A": "1"}).version
    others = [
        replace(spec, model="n"), replace(spec, arguments=()), replace(spec, environ={"A": "1"}),
        replace(spec, num_cpus=1), replace(spec, num_gpus=1), replace(spec, replica_type="large"),
    ]  # fmt: skip
    assert len({each.version for each in [spec, *others]}) == 7


@pytest.mark.parametrize("name", ["cpus", "gpus"])
def test_a_number_below_0_is_refused_with_its_setting(name: str) -> None:
    with pytest.raises(ConfigError, match=f"num_{name} of a replica must be at least 0, got -1") as caught:
        ReplicaSpec(**{f"num_{name}": -1})
    assert caught.value.details["option"] == f"replica_{name}"

"""Orders: a workload by name or file, and a round trip through JSON."""

import json
from pathlib import Path

import pytest

from chairlift.bench.offline.run_spec import RunSpec, WorkloadSpec
from chairlift.bench.workload.generators import generate
from chairlift.bench.workload.poisson_arrivals import with_poisson_arrivals
from chairlift.bench.workload.tenant_assignment import assign_tenants
from chairlift.core.errors import ConfigError, InvalidRequest


def trace(folder: Path) -> str:
    path = folder / "t.jsonl"
    lines = [{"at": 1, "prompt": [9], "output_tokens": 2}, {"at": 0, "prompt_tokens": 2, "output_tokens": 2}]
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


def test_a_name_is_generated() -> None:
    spec = WorkloadSpec(name="w1", requests=3, seed=4)
    assert spec.make(50) == generate("w1", vocab_size=50, seed=4, count=3)
    assert not spec.is_trace and spec.shown_name() == "w1"
    assert spec.shown() == {"name": "w1", "seed": 4, "rate": None, "tenants": {}}


def test_a_rate_and_tenants_are_put_on_top() -> None:
    spec = WorkloadSpec(name="w1", requests=3, rate=2.0, tenants={"a": 1.0, "b": 2.0})
    plain = generate("w1", vocab_size=50, count=3)
    assert spec.make(50) == assign_tenants(with_poisson_arrivals(plain, 2.0), {"a": 1.0, "b": 2.0})


def test_a_file_is_read(tmp_path: Path) -> None:
    spec = WorkloadSpec(name=trace(tmp_path), requests=1)
    assert [item.at for item in spec.make(50).items] == [0.0]
    assert spec.is_trace and spec.shown_name() == "t.jsonl"


def test_the_check_refuses_what_no_model_could_take(tmp_path: Path) -> None:
    assert len(WorkloadSpec(name="w2").check().items) == 64
    assert [item.at for item in WorkloadSpec(name=trace(tmp_path)).check().items] == [0.0, 1.0]
    with pytest.raises(ConfigError, match="unknown workload 'w4'"):
        WorkloadSpec(name="w4").check()
    with pytest.raises(InvalidRequest, match="cannot read"):
        WorkloadSpec(name=str(tmp_path / "none.jsonl")).check()
    with pytest.raises(ConfigError, match="rate must be"):
        WorkloadSpec(name="w1", rate=-1.0).check()


def test_an_order_survives_its_journey() -> None:
    order = RunSpec(
        model="m", options={"batching_policy": "mixed", "overlap": True, "max_memory": 0.5},
        workload=WorkloadSpec(name="w1", rate=2.0, tenants={"a": 1.0}),
    )  # fmt: skip
    assert RunSpec.decode(order.encode()) == order


@pytest.mark.parametrize("text", [b"", b"{}", b'{"model": 5, "options": {}, "workload": {"name": "w1"}}'])
def test_what_is_no_order_is_refused(text: bytes) -> None:
    with pytest.raises(ConfigError, match="the run specification cannot be read"):
        RunSpec.decode(text)

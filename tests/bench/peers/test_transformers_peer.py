"""Transformers peer: generates every token of the workload, in batches and with continuous batching."""

import json
from pathlib import Path

import pytest

from chairlift.bench.offline import offline_benchmark
from chairlift.bench.offline.run_spec import RunSpec, WorkloadSpec
from chairlift.bench.peers import transformers_peer as peers
from chairlift.bench.report import model_size_fields
from chairlift.core.errors import ConfigError, ModelError
from support_models import save_tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("llama", tmp_path_factory.mktemp("peers"))


def run_spec(folder: Path, **given: object) -> RunSpec:
    spec = WorkloadSpec(**{"name": "w1", "requests": 10, "seed": 3, **given})
    return RunSpec(model=str(folder), options={"dtype": "float32", "num_blocks": 300}, workload=spec)


@pytest.mark.full
@pytest.mark.parametrize("mode", ["static", "continuous"])
def test_a_peer_does_the_same_work_with_the_same_report_fields(folder: Path, mode: str) -> None:
    own, theirs = offline_benchmark.measure(run_spec(folder)), peers.measure(peers.MODES[mode], run_spec(folder))
    assert theirs["workload_digest"] == own["workload_digest"]
    assert theirs["requests"] == own["requests"] and theirs["requests"]["completed"] == 10
    assert theirs["tokens"]["output"] == own["tokens"]["output"]
    assert theirs["threads"] == own["threads"] and theirs["vocab_size"] == own["vocab_size"]
    assert theirs["engine"]["dtype"] == "torch.float32" and "sdpa" in theirs["engine"]["attention"]
    for name in ("latency_seconds", "ttft_seconds", "itl_seconds"):
        assert 0 < theirs[name]["mean"] <= theirs["seconds"]
    assert theirs["ttft_seconds"]["mean"] < theirs["latency_seconds"]["mean"]


@pytest.mark.full
def test_without_a_model_it_is_the_embedded_one(folder: Path) -> None:
    spec = WorkloadSpec(name="w1", requests=2, seed=3)
    found = peers.measure(peers.static, RunSpec(model=None, options={"dtype": "float32"}, workload=spec))
    assert found["vocab_size"] == model_size_fields.model_shape(None)["vocab_size"]  # type: ignore[index]
    assert found["requests"]["completed"] == 2


@pytest.mark.full
def test_static_batches_end_together_in_the_order_of_arrival(folder: Path) -> None:
    model = peers._model(*map(__import__, ("torch", "transformers")), run_spec(folder))
    items = run_spec(folder).workload.make(304).items
    with peers.static(model, items) as run:
        records, seconds = run(items)
    first, last = records[: peers.STATIC_BATCH], records[peers.STATIC_BATCH :]
    assert [record.item for record in records] == list(items)
    assert len({record.ended for record in first}) == len({record.ended for record in last}) == 1
    assert first[0].ended < last[0].stamps[0] < last[0].ended <= seconds
    assert all(len(record.stamps) == record.output_tokens == record.item.output_tokens for record in records)


def test_what_a_peer_cannot_do_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"a request of the workload has [0-9]+ tokens, the limit of the model is 1024"
    ):
        peers.measure(peers.static, run_spec(folder, name="w3", requests=1))
    with pytest.raises(ConfigError, match="arrive all at once"):
        peers.measure(peers.static, run_spec(folder, rate=5.0))
    with pytest.raises(ModelError, match="transformers cannot load"):
        peers.measure(peers.static, run_spec(tmp_path))


def test_it_runs_a_specification_from_a_file(folder: Path, tmp_path: Path) -> None:
    files = [tmp_path / "order.json", tmp_path / "result.json"]
    files[0].write_bytes(run_spec(folder, requests=2).encode())
    assert peers.main(["static", *map(str, files)]) == 0
    assert json.loads(files[1].read_text())["requests"]["completed"] == 2

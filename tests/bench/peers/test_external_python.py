"""External Python: an engine in another Python does the same work, with the same report fields."""

import json
import sys
from pathlib import Path

import pytest

from chairlift.bench.offline import offline_benchmark
from chairlift.bench.offline.run_spec import RunSpec, WorkloadSpec
from chairlift.bench.peers import external_python
from chairlift.core.errors import ChairliftError, ConfigError, ModelError
from support_models import save_tiny
from support_peers import write_python


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("llama", tmp_path_factory.mktemp("external"))


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_python(tmp_path_factory.mktemp("python"))


def run_spec(folder: Path, settings: dict[str, str] | None = None, **given: object) -> RunSpec:
    spec = WorkloadSpec(**{"name": "w1", "requests": 5, "seed": 3, **given})
    options = {"dtype": "float32", "num_blocks": 300}
    return RunSpec(model=str(folder), options=options, workload=spec, settings=settings or {})


@pytest.mark.full
@pytest.mark.parametrize("engine", external_python.ENGINES)
def test_a_peer_does_the_same_work_with_the_same_report_fields(engine: str, folder: Path, python: str) -> None:
    settings = {"python": python, "model": str(folder), "kv_gib": "2", "max_num_seqs": "9"}
    own, theirs = (
        offline_benchmark.measure(run_spec(folder)),
        external_python.measure(engine, run_spec(folder, settings)),
    )
    assert theirs["workload_digest"] == own["workload_digest"]
    assert theirs["requests"] == own["requests"] and theirs["requests"]["completed"] == 5
    assert theirs["tokens"]["output"] == own["tokens"]["output"] and theirs["vocab_size"] == own["vocab_size"]
    assert theirs["engine"]["version"] == {"vllm": "9.9", "openvino": "8.8"}[engine]
    assert theirs["engine"]["max_num_seqs"] == 9 and theirs["engine"]["settings"]["model"] == folder.name
    assert 0 < theirs["ttft_seconds"]["mean"] <= theirs["latency_seconds"]["mean"] <= theirs["seconds"]
    assert theirs["peak_memory_bytes"] > 2**20 and theirs["threads"] >= 1


def test_a_peer_that_fails_is_reported_with_the_end_of_standard_error(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ChairliftError, match="exit code 1 and no result"):
        external_python.measure("vllm", run_spec(folder, {"python": sys.executable}))
    assert "No module named 'vllm'" in capfd.readouterr().err


def test_what_a_peer_cannot_do_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="arrive all at once"):
        external_python.measure("vllm", run_spec(folder, rate=5.0))
    with pytest.raises(ModelError, match=r"has no config\.json with a vocab_size"):
        external_python.measure("vllm", run_spec(tmp_path))


def test_the_dtype_is_the_one_asked_for_or_the_models_own(folder: Path, tmp_path: Path) -> None:
    assert external_python.dtype_of(run_spec(folder)) == "float32"
    (tmp_path / "config.json").write_text(json.dumps({"dtype": "bfloat16"}))
    auto = RunSpec(model=str(tmp_path), options={}, workload=WorkloadSpec(name="w1"))
    assert external_python.dtype_of(auto) == "bfloat16"


def test_it_runs_a_specification_from_a_file(folder: Path, python: str, tmp_path: Path) -> None:
    files = [tmp_path / "order.json", tmp_path / "result.json"]
    files[0].write_bytes(run_spec(folder, {"python": python}, requests=2).encode())
    assert external_python.main(["vllm", *map(str, files)]) == 0
    assert json.loads(files[1].read_text())["requests"]["completed"] == 2

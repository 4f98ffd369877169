"""llama.cpp: the server is started, called on its own path and ended; errors show its standard error."""

import json
from pathlib import Path

import pytest

from chairlift.bench.offline.run_spec import RunSpec, WorkloadSpec
from chairlift.bench.peers import llama_cpp
from chairlift.bench.peers.llama_cpp import CompletionRecorder, Server, measure
from chairlift.core.errors import ConfigError, ModelError
from support_models import save_tiny
from support_peers import write_llama_server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("llama", tmp_path_factory.mktemp("llama-cpp"))


def run_spec(folder: Path, server: str, **given: object) -> RunSpec:
    spec = WorkloadSpec(**{"name": "w1", "requests": 5, "seed": 3, **given})
    settings = {"server": server, "model": "some.gguf"}
    return RunSpec(model=str(folder), options={}, workload=spec, settings=settings)


def test_every_token_is_counted_and_the_server_is_ended(folder: Path, tmp_path: Path) -> None:
    server = Server()
    found = measure(server, run_spec(folder, write_llama_server(tmp_path)))
    workload = run_spec(folder, "").workload.make(found["vocab_size"])
    assert found["requests"]["completed"] == 5 and found["workload_digest"] == workload.digest()
    assert found["tokens"]["output"] == workload.output_tokens
    assert found["engine"]["version"] == "42 (abc)" and found["engine"]["slots"] == 5
    assert 0 < found["ttft_seconds"]["mean"] <= found["seconds"]
    assert server._process is not None
    assert server._process.poll() is not None, "it is ended with the run"


def test_a_server_that_does_not_start_is_reported_with_the_end_of_standard_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"did not become ready: error: no such model"):
        measure(Server(), run_spec(folder, write_llama_server(tmp_path, broken=True)))
    with pytest.raises(ConfigError, match=r"no llama-server on PATH; set --peer llama\.cpp\.server=PROGRAM"):
        measure(Server(), run_spec(folder, "no-such-server-anywhere"))


@pytest.mark.parametrize(
    ("status", "event", "error"),
    [(200, {"error": {"code": 500}}, "request_failed"), (503, {}, "http_503"), (200, {"tokens": [1, 2]}, "")],
)
def test_a_response_that_is_an_error_has_no_token(status: int, event: dict[str, object], error: str) -> None:
    recorder = CompletionRecorder(1.0)
    recorder.head(status, [])
    recorder.body(f"data: {json.dumps(event)}\n\n".encode(), 3.0)
    assert recorder.error == error
    assert (recorder.tokens, recorder.stamps) == ((0, []) if error else (2, [2.0]))


@pytest.mark.full
def test_it_runs_a_specification_from_a_file_and_can_be_ended_from_outside(folder: Path, tmp_path: Path) -> None:
    files = [tmp_path / "order.json", tmp_path / "result.json"]
    files[0].write_bytes(run_spec(folder, write_llama_server(tmp_path), requests=2).encode())
    exit_hooks = []
    assert llama_cpp.main(list(map(str, files)), exit_hooks.append) == 0
    assert json.loads(files[1].read_text())["requests"]["completed"] == 2
    exit_hooks[0]()

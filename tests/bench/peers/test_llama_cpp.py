"""llama.cpp: its server is started, asked on its own path, and ended; what went wrong is its own last words."""

import json
from pathlib import Path

import pytest

from chairlift.bench.offline.run_spec import RunSpec, WorkloadSpec
from chairlift.bench.peers import llama_cpp
from chairlift.bench.peers.llama_cpp import Answer, Server, measure
from chairlift.core.errors import ConfigError, ModelError
from support_models import save_tiny
from support_peers import llama_server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("llama", tmp_path_factory.mktemp("llama-cpp"))


def order(folder: Path, server: str, **given: object) -> RunSpec:
    spec = WorkloadSpec(**{"name": "w1", "requests": 5, "seed": 3, **given})
    settings = {"server": server, "model": "some.gguf"}
    return RunSpec(model=str(folder), options={}, workload=spec, settings=settings)


def test_every_token_is_counted_and_the_server_is_ended(folder: Path, tmp_path: Path) -> None:
    server = Server()
    found = measure(server, order(folder, llama_server(tmp_path)))
    asked = order(folder, "").workload.make(found["vocab_size"])
    assert found["requests"]["completed"] == 5 and found["workload_digest"] == asked.digest()
    assert found["tokens"]["output"] == asked.output_tokens
    assert found["engine"]["version"] == "42 (abc)" and found["engine"]["slots"] == 5
    assert 0 < found["ttft_seconds"]["mean"] <= found["seconds"]
    assert server._process is not None
    assert server._process.poll() is not None, "it is ended with the run"


def test_a_server_that_does_not_come_up_is_told_with_its_last_words(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"did not become ready: error: no such model"):
        measure(Server(), order(folder, llama_server(tmp_path, broken=True)))
    with pytest.raises(ConfigError, match=r"no llama-server on PATH; --peer llama\.cpp\.server=\.\. names one"):
        measure(Server(), order(folder, "no-such-server-anywhere"))


@pytest.mark.parametrize(
    ("status", "event", "error"),
    [(200, {"error": {"code": 500}}, "request_failed"), (503, {}, "http_503"), (200, {"tokens": [1, 2]}, "")],
)
def test_an_answer_that_is_an_error_is_no_token(status: int, event: dict[str, object], error: str) -> None:
    answer = Answer(1.0)
    answer.head(status, [])
    answer.body(f"data: {json.dumps(event)}\n\n".encode(), 3.0)
    assert answer.error == error
    assert (answer.tokens, answer.stamps) == ((0, []) if error else (2, [2.0]))


def test_it_obeys_an_order_from_a_file_and_can_be_ended_from_outside(folder: Path, tmp_path: Path) -> None:
    files = [tmp_path / "order.json", tmp_path / "result.json"]
    files[0].write_bytes(order(folder, llama_server(tmp_path), requests=2).encode())
    told = []
    assert llama_cpp.main(list(map(str, files)), told.append) == 0
    assert json.loads(files[1].read_text())["requests"]["completed"] == 2
    told[0]()

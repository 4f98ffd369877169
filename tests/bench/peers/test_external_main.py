"""External main: measures an engine without Chairlift, and the programs import nothing of Chairlift."""

import ast
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from chairlift.bench.peers import external_main

FOLDER = Path(external_main.__file__).parent


class Engine:
    def __init__(self) -> None:
        self.requests_run: list[Any] = []
        self.closed = False

    def run(self, requests: list[dict[str, Any]]) -> list[tuple[list[float], int]]:
        self.requests_run.append(requests)
        time.sleep(0.01)
        return [([time.perf_counter()], request["tokens"]) for request in requests]

    def about(self) -> dict[str, Any]:
        return {"version": "1"}

    def close(self) -> None:
        self.closed = True


def test_the_warm_up_is_not_measured() -> None:
    engine = Engine()
    task = {"warm_up": [{"prompt": [1], "tokens": 2}], "requests": [{"prompt": [3], "tokens": 4}] * 2}
    found = external_main.measure_engine(engine, task)
    assert engine.requests_run == [task["warm_up"], task["requests"]] and engine.closed
    assert [record["tokens"] for record in found["records"]] == [4, 4] and found["engine"] == {"version": "1"}
    assert all(0.01 <= record["stamps"][0] <= found["seconds"] for record in found["records"])
    assert found["peak_memory_bytes"] > 2**20


@pytest.mark.parametrize(
    "path", [FOLDER / f"external_{name}.py" for name in ("main", "openvino", "vllm")], ids=lambda path: path.name
)
def test_nothing_of_chairlift_is_imported(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        assert all(name.partition(".")[0] in sys.stdlib_module_names for name in names), (path.name, names)


def test_it_ends_when_its_parent_ends(tmp_path: Path) -> None:
    """The engine hangs for an hour, but the program ends when its standard input closes."""
    (tmp_path / "external_main.py").write_text((FOLDER / "external_main.py").read_text())
    (tmp_path / "external_slow.py").write_text("import time\ndef open_engine(task):\n time.sleep(3600)\n")
    task = tmp_path / "task.json"
    task.write_text(json.dumps({}))
    command = [
        sys.executable,
        "-I",
        str(tmp_path / "external_main.py"),
        "slow",
        str(task),
        str(tmp_path / "result.json"),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 1

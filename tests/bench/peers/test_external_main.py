"""Outside: what is measured of an engine that knows nothing of Chairlift, and that the programs need nothing of it."""

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
        self.asked: list[Any] = []
        self.closed = False

    def run(self, requests: list[dict[str, Any]]) -> list[tuple[list[float], int]]:
        self.asked.append(requests)
        time.sleep(0.01)
        return [([time.perf_counter()], request["tokens"]) for request in requests]

    def about(self) -> dict[str, Any]:
        return {"version": "1"}

    def close(self) -> None:
        self.closed = True


def test_the_warm_up_is_not_measured() -> None:
    engine = Engine()
    task = {"warm_up": [{"prompt": [1], "tokens": 2}], "requests": [{"prompt": [3], "tokens": 4}] * 2}
    found = external_main.measured(engine, task)
    assert engine.asked == [task["warm_up"], task["requests"]] and engine.closed
    assert [ride["tokens"] for ride in found["rides"]] == [4, 4] and found["engine"] == {"version": "1"}
    assert all(0.01 <= ride["stamps"][0] <= found["seconds"] for ride in found["rides"])
    assert found["peak_memory_bytes"] > 2**20


@pytest.mark.parametrize(
    "path", [FOLDER / f"external_{name}.py" for name in ("main", "openvino", "vllm")], ids=lambda path: path.name
)
def test_nothing_of_chairlift_is_imported(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        assert all(name.partition(".")[0] in sys.stdlib_module_names for name in names), (path.name, names)


def test_it_leaves_when_who_started_it_is_gone(tmp_path: Path) -> None:
    """Its engine would hang for an hour: the program ends when its standard input does."""
    (tmp_path / "external_main.py").write_text((FOLDER / "external_main.py").read_text())
    (tmp_path / "external_slow.py").write_text("import time\ndef opened(task):\n time.sleep(3600)\n")
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

"""run_child: writes what was measured, or the error; a run by hand need not keep standard input open."""

import json
import subprocess
import sys
from pathlib import Path

from chairlift.bench.offline.child_process import run_child
from chairlift.bench.offline.run_spec import RunSpec, WorkloadSpec
from chairlift.core.errors import ContextLengthExceeded
from chairlift.llm.builtin_models import RANDOM

SPEC = RunSpec(model=RANDOM, options={"seed": 3}, workload=WorkloadSpec(name="w1"))


def test_the_child_writes_what_was_measured(tmp_path: Path) -> None:
    files = [tmp_path / "order", tmp_path / "result"]
    files[0].write_bytes(SPEC.encode())
    assert run_child([str(file) for file in files], lambda spec: {"model": spec.model, **spec.options}) == 0
    assert json.loads(files[1].read_text()) == {"model": RANDOM, "seed": 3}


def test_the_child_writes_an_error_of_chairlift(tmp_path: Path) -> None:
    def fail(spec: RunSpec) -> dict[str, int]:
        raise ContextLengthExceeded(9, None, 5)

    files = [tmp_path / "order", tmp_path / "result"]
    files[0].write_bytes(SPEC.encode())
    assert run_child([str(file) for file in files], fail) == 1
    error = json.loads(files[1].read_text())["error"]
    assert error["code"] == "context_length_exceeded" and error["message"].startswith("prompt has 9 tokens")
    files[0].write_text("nonsense")
    assert run_child([str(file) for file in files], fail) == 1
    assert json.loads(files[1].read_text())["error"]["code"] == "config_error"


def test_a_run_by_hand_need_not_keep_standard_input_open() -> None:
    code = "from chairlift.bench.offline import child_process as run; run.exit_with_parent()\n"
    code += "import time; time.sleep(0.3)"
    assert subprocess.run([sys.executable, "-c", code], input=b"", timeout=60).returncode == 0

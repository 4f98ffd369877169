"""Scripts for transformers' continuous batching: one added line, and they have the same tokens as without it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support_models import save_tiny

SCRIPTS = Path(__file__).parent / "scripts"
BEFORE = "model = model.eval()\n"
ADDED = "import chairlift; chairlift.attach(model)\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("llama", tmp_path_factory.mktemp("tiny"))


def run(script: str, folder: Path, scratch: Path, *, attached: bool) -> dict[str, Any]:
    """Run a script in its own process, with the added line or without; return what it wrote."""
    text = (SCRIPTS / script).read_text(encoding="utf-8")
    assert text.count(BEFORE) == 1 and "chairlift" not in text
    if attached:
        text = text.replace(BEFORE, BEFORE + ADDED)
    path, result = scratch / f"{attached}_{script}", scratch / f"{attached}_{script}.json"
    path.write_text(text, encoding="utf-8")
    environ = {**os.environ, "CHAIRLIFT_CPU_THREADS": "1"}
    command = [sys.executable, str(path), str(folder), str(result)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-6000:]
    written: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return written


def test_batches_equal_those_of_transformers_and_generate(folder: Path, tmp_path: Path) -> None:
    ours, theirs = (run("simple.py", folder, tmp_path, attached=attached) for attached in (True, False))
    assert ours["batch"] == ours["expected"] == theirs["expected"] == theirs["batch"]
    assert ours["chunked"] == ours["expected"] == theirs["chunked"]
    for name in ("ids", "prompts", "status"):
        assert ours[name] == theirs[name]
    for own, other in zip(ours["logprobs"], theirs["logprobs"], strict=True):
        assert own == pytest.approx(other, abs=2e-3)
    assert len(set(map(tuple, ours["batch"]))) > 10
    assert len(set(map(len, ours["batch"]))) > 1  # some outputs end early


def test_managers_have_the_tokens_of_transformers(folder: Path, tmp_path: Path) -> None:
    ours, theirs = (run("full.py", folder, tmp_path, attached=attached) for attached in (True, False))
    assert ours == theirs
    assert [len(tokens) for tokens in ours["own"]] == list(range(3, 11))

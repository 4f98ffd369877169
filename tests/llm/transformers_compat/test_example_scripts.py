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


RUN_ALL = """
import runpy, sys

folder, *scripts = sys.argv[1:]
for script in scripts:
    sys.argv = [script, folder, script + ".json"]
    runpy.run_path(script, run_name="__main__")
"""
"""Runs scripts one after another, so that torch and transformers are imported once."""


@pytest.fixture(scope="module")
def written(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, dict[str, Any]]:
    """What each script wrote: with the added line (True) and without (False)."""
    scratch = tmp_path_factory.mktemp("scripts")
    return {attached: run(folder, scratch, attached=attached) for attached in (True, False)}


def run(folder: Path, scratch: Path, *, attached: bool) -> dict[str, Any]:
    """Run the scripts in a process of their own, with the added line or without; return what each wrote."""
    paths = {name: scratch / f"{attached}_{name}" for name in ("simple.py", "full.py")}
    for name, path in paths.items():
        text = (SCRIPTS / name).read_text(encoding="utf-8")
        assert text.count(BEFORE) == 1 and "chairlift" not in text
        path.write_text(text.replace(BEFORE, BEFORE + ADDED) if attached else text, encoding="utf-8")
    environ = {**os.environ, "CHAIRLIFT_CPU_THREADS": "1"}
    command = [sys.executable, "-c", RUN_ALL, str(folder), *map(str, paths.values())]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-6000:]
    return {name: json.loads(Path(f"{path}.json").read_text(encoding="utf-8")) for name, path in paths.items()}


@pytest.mark.full
def test_batches_equal_those_of_transformers_and_generate(written: dict[bool, dict[str, Any]]) -> None:
    ours, theirs = (written[attached]["simple.py"] for attached in (True, False))
    assert ours["batch"] == ours["expected"] == theirs["expected"] == theirs["batch"]
    assert ours["chunked"] == ours["expected"] == theirs["chunked"]
    for name in ("ids", "prompts", "status"):
        assert ours[name] == theirs[name]
    for own, other in zip(ours["logprobs"], theirs["logprobs"], strict=True):
        assert own == pytest.approx(other, abs=2e-3)
    assert len(set(map(tuple, ours["batch"]))) > 10
    assert len(set(map(len, ours["batch"]))) > 1  # some outputs end early


@pytest.mark.full
def test_managers_have_the_tokens_of_transformers(written: dict[bool, dict[str, Any]]) -> None:
    ours, theirs = (written[attached]["full.py"] for attached in (True, False))
    assert ours == theirs
    assert [len(tokens) for tokens in ours["own"]] == list(range(3, 11))

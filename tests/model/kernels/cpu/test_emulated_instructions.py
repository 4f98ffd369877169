"""Kernels for instructions that few processors have, with the instructions replaced by C++."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chairlift.model.kernels.cpu import compile as compiling
from support_native import need_native
from support_source_tree import ROOT

TESTS = [str(Path(__file__).with_name(name)) for name in ("test_linear.py", "test_blocks.py", "test_quantization.py")]


@pytest.mark.full
@pytest.mark.parametrize(
    ("emulated", "macro", "base"),
    [("avx2_vnni", "CHAIRLIFT_EMULATES_AVX_VNNI", "avx2"), ("amx_bf16", "CHAIRLIFT_EMULATES_AMX", "portable")],
)
def test_the_kernels_are_right(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, emulated: str, macro: str, base: str
) -> None:
    need_native()
    if base not in compiling.processor_sets():
        pytest.skip(f"the processor has no {base}")
    sets = compiling.INSTRUCTION_SETS
    monkeypatch.setattr(compiling, "INSTRUCTION_SETS", {**sets, emulated: sets[base]})
    library = tmp_path / "emulated.so"
    compiling.compile_library(library, [f"-D{macro}"], [emulated, "portable"])
    command = [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", *TESTS]
    environ = {**os.environ, "CHAIRLIFT_CPU_LIBRARY": str(library), "CHAIRLIFT_CPU_KERNELS": emulated}
    result = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert result.returncode == 0 and f"[{emulated}-" in result.stdout, result.stdout[-3000:]

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
def test_the_kernels_for_avx_vnni_are_right(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    need_native()
    if "avx2" not in compiling.processor_sets():
        pytest.skip("the processor has no AVX2")
    sets = compiling.INSTRUCTION_SETS
    monkeypatch.setattr(compiling, "INSTRUCTION_SETS", {**sets, "avx2_vnni": sets["avx2"]})
    library = tmp_path / "emulated.so"
    compiling.compile_library(library, ["-DCHAIRLIFT_EMULATES_AVX_VNNI"], ["avx2_vnni", "portable"])
    command = [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", *TESTS]
    environ = {**os.environ, "CHAIRLIFT_CPU_LIBRARY": str(library), "CHAIRLIFT_CPU_KERNELS": "avx2_vnni"}
    result = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert result.returncode == 0 and "[avx2_vnni-" in result.stdout, result.stdout[-3000:]

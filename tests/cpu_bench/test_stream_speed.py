"""stream_speed: rates of both engines for the same streams, and their ratios run by run."""

import json
from pathlib import Path

import pytest

from cpu_bench import stream_speed
from cpu_bench.__main__ import main
from support_models import save_tiny
from support_native import need_native

LLAMA = """#!/bin/sh
echo "loading" >&2
echo "main: n_kv_max = 4096"
for streams in 1 8 32; do echo "{\\"pl\\": $streams, \\"pp\\": 64, \\"tg\\": 64, \\"speed_tg\\": $streams.5}"; done
"""


def test_ratios_are_medians_of_runs_beside_each_other() -> None:
    runs = {
        f"chairlift {name}": [{"1": 2.0, "8": 8.0, "32": 9.0}, {"1": 6.0, "8": 8.0, "32": 9.0}]
        for name in stream_speed.QUANTIZATIONS
    } | {"llama.cpp@q8_0": [{"1": 1.0, "8": 4.0, "32": 9.0}, {"1": 2.0, "8": 4.0, "32": 3.0}]}
    ratios = stream_speed.ratios(runs)
    assert set(ratios) == {"int8", "int8-channel"}, "llama.cpp has not run in bfloat16"
    assert ratios["int8"] == {"1": 2.5, "8": 2.0, "32": 2.0}


def test_streams_of_both_engines_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_native()
    monkeypatch.delenv("PYTHONPATH", raising=False)
    save_tiny("llama", tmp_path / "models/smol135")
    program = tmp_path / "llama.cpp/llama_cpp_python-1/vendor/llama.cpp/build/bin/llama-batched-bench"
    program.parent.mkdir(parents=True)
    program.write_text(LLAMA)
    program.chmod(0o755)
    assert main(["streams", str(tmp_path), "--models", "smol135", "--repeat", "1", "--into", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "cpu-smol135-streams.json").read_text())
    assert report["runs"]["llama.cpp@q8_0"] == [{"1": 1.5, "8": 8.5, "32": 32.5}]
    for name in stream_speed.QUANTIZATIONS:
        (rates,) = report["runs"][f"chairlift {name}"]
        assert set(rates) == {"1", "8", "32"} and all(rate > 0 for rate in rates.values())
    assert str(tmp_path) not in json.dumps(report)

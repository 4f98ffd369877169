"""stream_speed: rates of both engines for the same streams, and their ratios run by run."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cpu_bench import stream_speed
from cpu_bench.__main__ import main
from cpu_bench.stream_speed import compare_streams
from support_models import save_tiny
from support_native import need_native

LLAMA = """#!/bin/sh
echo "loading" >&2
echo "main: n_kv_max = 4096"
case "$*" in
*"-npp 512"*) echo '{"pl": 1, "pp": 512, "tg": 1, "speed_pp": 700.5, "speed_tg": 1.0}' ;;
*) for n in 1 8 32; do echo "{\\"pl\\": $n, \\"pp\\": 64, \\"tg\\": 64, \\"speed_tg\\": $n.5}"; done ;;
esac
"""
RATES = {"1": 1.5, "8": 8.5, "32": 32.5, "prompt": 700.5}


def llama_in(folder: Path) -> Path:
    """Write a program that answers as llama-batched-bench where the tool looks for it."""
    program = folder / "llama.cpp/llama_cpp_python-1/vendor/llama.cpp/build/bin/llama-batched-bench"
    program.parent.mkdir(parents=True)
    program.write_text(LLAMA)
    program.chmod(0o755)
    return program


def test_ratios_are_medians_of_runs_beside_each_other() -> None:
    ours = [{"1": 2.0, "8": 8.0, "32": 9.0, "prompt": 6.0}, {"1": 6.0, "8": 8.0, "32": 9.0, "prompt": 8.0}]
    theirs = [{"1": 1.0, "8": 4.0, "32": 9.0, "prompt": 2.0}, {"1": 2.0, "8": 4.0, "32": 3.0, "prompt": 2.0}]
    runs = {f"chairlift {name}": ours for name in ("none", "int8", "Q8_0")} | {"llama.cpp@q8_0": theirs}
    ratios = stream_speed.ratios(runs)
    assert list(ratios) == ["int8", "Q8_0"], "llama.cpp has not run in bfloat16"
    assert ratios["int8"] == {"1": 2.5, "8": 2.0, "32": 2.0, "prompt": 3.5}


def test_streams_of_both_engines_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_native()
    monkeypatch.delenv("PYTHONPATH", raising=False)
    save_tiny("llama", tmp_path / "models/smol135")
    llama_in(tmp_path)
    args = ["streams", str(tmp_path), "--models", "smol135", "--repeat", "1", "--into", str(tmp_path)]
    assert main([*args, "--pairs", "none,int8"]) == 0
    report = json.loads((tmp_path / "cpu-smol135-streams.json").read_text())
    assert report["runs"]["llama.cpp"] == report["runs"]["llama.cpp@q8_0"] == [RATES]
    for name in ("none", "int8"):
        (rates,) = report["runs"][f"chairlift {name}"]
        assert set(rates) == {"1", "8", "32", "prompt"} and all(rate > 0 for rate in rates.values())
        assert report["ratios"][name]["prompt"] == rates["prompt"] / 700.5
    assert str(tmp_path) not in json.dumps(report)


def test_both_engines_have_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    specs: list[dict[str, Any]] = []

    def exchange(command: Sequence[str], spec: bytes, **_: object) -> dict[str, Any]:
        specs.append(json.loads(spec))
        return {"rates": RATES}

    monkeypatch.setattr(stream_speed, "exchange", exchange)
    ggufs = {"@q4_0": tmp_path / "a.gguf"}
    *_, found = compare_streams(tmp_path / "model", [str(llama_in(tmp_path))], ggufs, 2, ["Q4_0", "int4"])
    assert found["ratios"] == {name: dict.fromkeys(RATES, 1.0) for name in ("int4", "Q4_0")}
    chosen = [(Path(spec["model"]).name, spec["options"]["quantization"]) for spec in specs]
    assert chosen == [("a.gguf", "auto"), ("model", "int4"), ("model", "int4"), ("a.gguf", "auto")]


def test_a_comparison_that_is_ended_early_leaves_the_pairs_that_it_has_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantizations: list[str] = []

    def exchange(command: Sequence[str], spec: bytes, **_: object) -> dict[str, Any]:
        quantizations.append(json.loads(spec)["options"]["quantization"])
        if len(quantizations) == 2:
            raise KeyboardInterrupt
        return {"rates": RATES}

    monkeypatch.setattr(stream_speed, "exchange", exchange)
    llama_in(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        main(["streams", str(tmp_path), "--models", "smol135", "--into", str(tmp_path), "--pairs", "int4,int8"])
    report = json.loads((tmp_path / "cpu-smol135-streams.json").read_text())
    assert quantizations == ["int4", "int8"]
    assert report["ratios"] == {"int4": dict.fromkeys(RATES, 1.0)}

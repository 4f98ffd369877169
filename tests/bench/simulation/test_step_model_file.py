"""read_step_model: step times without their noise, or a fit of measured steps; any other file is an error."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from chairlift.bench.simulation.sim_step_model import SMOL135_CPU, SimStepModel, write_model
from chairlift.bench.simulation.step_model_file import read_step_model
from chairlift.core.errors import ConfigError
from support_step_stats import make_stats


def test_step_times_are_read_without_their_noise(tmp_path: Path) -> None:
    file = str(tmp_path / "times.json")
    write_model(file, replace(SMOL135_CPU, noise=0.2))
    assert read_step_model(file) == replace(SMOL135_CPU, noise=0.0)
    Path(file).write_text('{"step": 0.5}', encoding="utf-8")
    assert read_step_model(file) == SimStepModel(step=0.5, origin="step times of times.json")


def test_measured_steps_are_fitted(tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"
    steps = [
        make_stats(
            step,
            num_sequences=rows,
            started_ms=100.0 * step,
            collect_started_ms=100.0 * step,
            collect_ms=20.0 + 2 * rows,
        )
        for step, rows in enumerate([1, 5, 9, 20] * 10)
    ]
    file.write_bytes(b"\n".join(map(msgspec.json.encode, steps)))
    model = read_step_model(str(file))
    assert (model.step, model.row) == (pytest.approx(0.02), pytest.approx(0.002)) and model.noise == 0
    assert model.origin.startswith("fitted to 40 steps; error: median 0.0%")


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b'{"step": 1, "x": 2}', b"\xff"])
def test_another_file_is_an_error(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "times.json"
    file.write_bytes(content)
    with pytest.raises(ConfigError):
        read_step_model(str(file))
    with pytest.raises(ConfigError, match="cannot read"):
        read_step_model(str(tmp_path / "missing.json"))

"""Training: an interrupted and continued run ends with the same weights, and the run is recorded."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from chairlift import demo
from demo_model import train
from support_source_tree import ROOT

STEPS = 4


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a few hundred tokens, without a compiler, one of them with long rows."""
    monkeypatch.setattr(train, "TOKENS", 1024)
    monkeypatch.setattr(train, "SHORT", 256)
    monkeypatch.setattr(train, "LONG", 512)
    monkeypatch.setattr(train, "LONG_EVERY", 3)
    monkeypatch.setattr(train, "LOOK_EVERY", 1)
    monkeypatch.setattr(train, "SAVE_EVERY", 2)
    monkeypatch.setattr(train, "HELD_OUT", 2)
    monkeypatch.setattr(torch, "compile", lambda model, **options: model)


def folder(path: Path) -> Path:
    """Make a folder with the tokenizer, which would take a while."""
    path.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(demo.FOLDER / name, path / name)
    return path


def weights(run: train.Run) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in run.network.state_dict().items()}


@pytest.mark.full
def test_a_run_that_was_cut_ends_as_one_that_was_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train.Run(folder(tmp_path / "whole"), 5, STEPS)
    whole.train()
    cut = train.Run(folder(tmp_path / "cut"), 5, STEPS)
    taken = 0
    step = cut._take_step

    def dies_at_the_fourth() -> float:
        nonlocal taken
        taken += 1
        if taken == STEPS:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(cut, "_take_step", dies_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        cut.train()
    assert [entry["step"] for entry in log_of(tmp_path / "cut")] == [1, 2, 3], "the third is behind what was saved"
    monkeypatch.setattr(train.environment, "hardware", lambda: {"cpu": "another"})
    again = train.Run(tmp_path / "cut", 5, STEPS)
    assert again.step == 2 and again.origin == whole.origin
    again.train()
    expected = weights(whole)
    assert all(torch.equal(value, expected[name]) for name, value in weights(again).items())
    logs, others = log_of(tmp_path / "cut"), log_of(tmp_path / "whole")
    assert [entry["step"] for entry in logs] == [1, 2, 3, 4] and logs[1]["tokens"] == 2 * 1024
    assert [entry["by_skill"] for entry in logs] == [entry["by_skill"] for entry in others]
    assert logs[-1]["held_out_loss"] > 0 and len(logs[-1]["by_skill"]) > 10


def log_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "training.jsonl").read_text().splitlines()]


@pytest.mark.full
def test_what_is_exported_is_a_model_folder_and_says_how_it_came_about(tmp_path: Path) -> None:
    run = train.Run(folder(tmp_path / "run"), 5, 1)
    run.train()
    run.export()
    saved = load_file(tmp_path / "run" / "model.safetensors")
    assert {str(value.dtype) for value in saved.values()} == {"torch.bfloat16"}
    about = json.loads((tmp_path / "run" / "training.json").read_text())
    assert (about["seed"], about["steps"], about["step_tokens"]) == (5, 1, 1024)
    assert about["parameters"] == sum(value.numel() for value in saved.values())
    assert {"cpu", "usable_cores"} <= set(about["hardware"]) and "torch" in about["versions"]
    generation = json.loads((tmp_path / "run" / "generation_config.json").read_text())
    assert generation["do_sample"] is False and generation["eos_token_id"] == run.writer.end


@pytest.mark.full
def test_another_seed_length_or_data_does_not_go_on_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train.Run(folder(tmp_path / "run"), 5, STEPS).save()
    for seed, steps in ((6, STEPS), (5, STEPS + 1)):
        with pytest.raises(SystemExit, match=r"is of (seed|steps) \d, not \d"):
            train.Run(tmp_path / "run", seed, steps)
    monkeypatch.setattr(train, "drilling_at", lambda step, steps: 1.0)
    with pytest.raises(SystemExit, match="is of data"):
        train.Run(tmp_path / "run", 5, STEPS)


def test_a_log_without_a_state_is_begun_anew(tmp_path: Path) -> None:
    (folder(tmp_path / "run") / "training.jsonl").write_text('{"step": 200}\n')
    train.Run(tmp_path / "run", 5, STEPS)
    assert log_of(tmp_path / "run") == []


def test_without_a_compiler_it_is_slower_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda model, **options: "compiled")
    assert train.compiled("body") == ("compiled" if any(map(shutil.which, ("c++", "g++", "clang++"))) else "body")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert train.compiled("body") == "body"


@pytest.mark.full
def test_a_compiled_run_on_two_threads_repeats_to_the_bit(tmp_path: Path) -> None:
    """Without deterministic algorithms it does not: two processes, the sizes of the real run."""
    script = (
        "import argparse, sys; from pathlib import Path; from demo_model import train\n"
        "train.SAVE_EVERY, train.LOOK_EVERY, train.HELD_OUT = 10, 10, 1\n"
        "train.run(argparse.Namespace(folder=Path(sys.argv[1]), steps=10, seed=3, threads=2))"
    )
    made = []
    for name in ("first", "second"):
        command = [sys.executable, "-c", script, str(folder(tmp_path / name))]
        environ = {**os.environ, "PYTHONPATH": str(ROOT / "tools")}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        made.append((tmp_path / name / "model.safetensors").read_bytes())
    assert made[0] == made[1]


def test_rates_rise_stay_and_fall_and_drilling_ends() -> None:
    rates = [train.rate_at(step, 1000) for step in range(1000)]
    assert rates[0] < 0.05 and max(rates) == 1.0 == rates[train.WARM_UP] and 0 < rates[-1] < 0.01
    top = rates.index(1.0)
    assert rates[: top + 1] == sorted(rates[: top + 1]) and rates[top:] == sorted(rates[top:], reverse=True)
    assert train.drilling_at(0, 1000) == 0.5 and train.drilling_at(50, 1000) == 0.25
    assert train.drilling_at(100, 1000) == train.drilling_at(999, 1000) == 0.0

"""Model card: it has the measured results, and the packaged card is equal to the one that is written from its files."""

import json
import re
import shutil
from pathlib import Path

import pytest

from chairlift import demo
from demo_model import __main__ as command
from demo_model import model_card_and_loss_plot


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("config.json", "training.json", "training.jsonl", "examination.json", "model.safetensors"):
        shutil.copyfile(demo.FOLDER / name, tmp_path / name)
    return tmp_path


def test_the_embedded_card_is_what_its_files_make(folder: Path) -> None:
    model_card_and_loss_plot.write(folder)
    assert (folder / "README.md").read_text(encoding="utf-8") == (demo.FOLDER / "README.md").read_text(encoding="utf-8")


def test_a_card_tells_the_shares_that_were_measured(folder: Path) -> None:
    report = {"echo": {"tasks": 80, "right": 77, "wrong": []}, "dates": {"tasks": 50, "right": 0, "wrong": []}}
    (folder / "examination.json").write_text(json.dumps(report))
    model_card_and_loss_plot.write(folder)
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "| echo | 80 | 96.2% |\n| dates | 50 | 0.0% |\n" in text
    assert not re.search(r"[{}](?!\")", text.replace('{"name"', "").replace('"arguments": {...}}', ""))


@pytest.mark.full
def test_the_curve_is_drawn_of_the_log(folder: Path) -> None:
    model_card_and_loss_plot.draw_loss(folder)
    first = (folder / "loss.png").read_bytes()
    assert first.startswith(b"\x89PNG")
    entries = model_card_and_loss_plot.read_log(folder)
    (folder / "training.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries[: len(entries) // 2]))
    model_card_and_loss_plot.draw_loss(folder)
    assert (folder / "loss.png").read_bytes() != first


def test_everything_that_the_package_carries_is_there() -> None:
    assert {path.name for path in demo.FOLDER.iterdir()} - {"__init__.py", "__pycache__"} == set(command.PACKAGED_FILES)

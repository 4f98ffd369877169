"""The registry of formats: each named module has the interface, and a folder without another format is safetensors."""

import importlib
from pathlib import Path

from chairlift.model.weights.formats import safetensors
from chairlift.model.weights.formats.registry import FORMATS, format_of


def test_every_format_has_the_interface() -> None:
    for name in FORMATS:
        module = importlib.import_module(f"chairlift.model.weights.formats.{name}")
        assert callable(module.claims) and callable(module.stored_weights)


def test_a_folder_without_another_format_is_safetensors(tmp_path: Path) -> None:
    assert format_of(tmp_path) is safetensors

"""read_pooling: the pooling that a model folder of sentence-transformers names."""

import json
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.errors import ModelError
from chairlift.model.config.pooling_config import read_pooling


def folder_with(path: Path, content: Any) -> Path:
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("content", "pooling"),
    [
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "last"),
        ({"pooling_mode_mean_tokens": True, "word_embedding_dimension": 8}, "mean"),
        ({"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": "max"}, "max"),
        ({}, None),
    ],
)
def test_the_mode_of_a_folder(tmp_path: Path, content: Any, pooling: str | None) -> None:
    assert read_pooling(folder_with(tmp_path, content)) == pooling


def test_a_folder_without_the_file_names_none(tmp_path: Path) -> None:
    assert read_pooling(tmp_path) is None


def test_several_modes_are_an_error_with_the_file(tmp_path: Path) -> None:
    content = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}
    with pytest.raises(ModelError, match=r"1_Pooling.config\.json has the pooling modes mean, cls"):
        read_pooling(folder_with(tmp_path, content))


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {})
    (folder / "1_Pooling" / "config.json").write_text("{")
    with pytest.raises(ModelError, match="1_Pooling"):
        read_pooling(folder)

"""check_weights: files of both formats are missing, truncated, or whole."""

from pathlib import Path

import pytest

from chairlift.core.errors import ModelError
from chairlift.model.config.gguf_folder import gguf_folder
from chairlift.model.config.weight_checks import check_weights
from support_gguf_models import write_gguf
from support_models import save_tiny


def test_safetensors_are_whole_or_named(tmp_path: Path) -> None:
    check_weights(save_tiny("llama", tmp_path))
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ModelError, match=r"model\.safetensors is truncated"):
        check_weights(tmp_path)


def test_a_gguf_file_that_has_changed_since_is_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", "llama", lambda _: "Q8_0")
    folder = gguf_folder(tmp_path / "a.gguf")
    check_weights(folder)
    (tmp_path / "a.gguf").write_bytes((tmp_path / "a.gguf").read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"a\.gguf"):
        check_weights(folder)
    (tmp_path / "a.gguf").unlink()
    with pytest.raises(ModelError, match=r"a\.gguf"):
        check_weights(folder)

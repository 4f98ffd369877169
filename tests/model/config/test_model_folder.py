"""require_model, weight_files: an unsupported model is named with its kind and a remedy."""

import json
from pathlib import Path

import pytest

from chairlift.core.errors import ModelError, UnsupportedModel
from chairlift.model.config.model_folder import require_model, weight_files


def write(folder: Path, **files: object) -> Path:
    """Write files by name, with two underscores for the dot; an object is JSON."""
    for name, content in files.items():
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        (folder / name.replace("__", ".")).write_bytes(data)
    return folder


def test_a_folder_with_a_config_is_a_model(tmp_path: Path) -> None:
    assert require_model(write(tmp_path, config__json={}, adapter_config__json={}), "m") == tmp_path


@pytest.mark.parametrize(
    ("files", "name", "message", "remedy"),
    [
        ({"adapter_config__json": {"base_model_name_or_path": "a/b"}}, "m", "m is a LoRA adapter for a/b, not a model",
         "merge it into a/b with peft's merge_and_unload()"),
        ({"adapter_config__json": {}}, "m", "m is a LoRA adapter for its base model", "merge it into its base model"),
        ({"params__json": {}}, "m", "m has params.json instead of config.json", "in the format of transformers"),
    ],
)  # fmt: skip
def test_a_folder_of_another_kind_is_named_with_a_remedy(
    tmp_path: Path, files: dict[str, object], name: str, message: str, remedy: str
) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        require_model(write(tmp_path, **files), name)
    error = caught.value
    assert error.message.startswith(message) and remedy in str(error.details["remedy"])
    assert error.message.endswith(f"; {error.details['remedy']}")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    write(tmp_path, c__bin=b"PK")
    with pytest.raises(ModelError, match=r"c\.bin is a file, but neither a model folder nor a GGUF file"):
        require_model(tmp_path / "c.bin", "c.bin")


def test_an_empty_folder_has_no_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"there is no config\.json in ") as caught:
        require_model(tmp_path, "m")
    assert not isinstance(caught.value, UnsupportedModel)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"pytorch_model__bin": b""}, "pytorch_model.bin is a pickle; only safetensors are supported"),
        ({"consolidated__pth": b""}, "consolidated.pth is a pickle"),
    ],
)
def test_weights_in_another_format_are_named(tmp_path: Path, files: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        weight_files(write(tmp_path, **files))
    assert message in caught.value.message and caught.value.details["remedy"]


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
    write(tmp_path, **{"model-1-of-2__safetensors": b"", "model__safetensors__index__json": index})
    with pytest.raises(ModelError, match=r"there is no file model-2-of-2\.safetensors in "):
        weight_files(tmp_path)
    (tmp_path / "model-2-of-2.safetensors").touch()
    assert [(file.name, names) for file, names in weight_files(tmp_path).items()] == [
        ("model-1-of-2.safetensors", ("a",)), ("model-2-of-2.safetensors", ("b",))
    ]  # fmt: skip

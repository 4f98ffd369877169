"""require_model, weight_files: what a model folder holds, its JSON files, its safetensors files. Imports no torch."""

import json
from pathlib import Path
from typing import Any

from chairlift.core.errors import ModelError, UnsupportedModel

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
SHARDS = "model-*-of-*.safetensors"

HEADER_LENGTH_BYTES = 8
"""Bytes at the beginning of a safetensors file, which hold the length of its header as a little-endian integer."""

ORIGINAL = "use the original model in safetensors, with --quantization int8 on a CPU or fp8 on a GPU"


def require_model(path: Path, name: str) -> Path:
    """Return a model folder with a config.json.

    Args:
        path: a folder, or a file that a user named as a model.
        name: the folder or the hub id, as the user wrote it.

    Raises UnsupportedModel for a LoRA adapter and Meta's or Mistral's own format; ModelError for a file and for another
    folder without config.json.
    """
    if path.is_file():
        raise ModelError(f"{name} is a file, but neither a model folder nor a GGUF file", model=name)
    if (path / "config.json").is_file():
        return path
    if (path / "adapter_config.json").is_file():
        base = read_json(path / "adapter_config.json").get("base_model_name_or_path")
        target = base if isinstance(base, str) and base else "its base model"
        raise unsupported_model(
            f"{name} is a LoRA adapter for {target}, not a model, and adapters are not supported",
            f"merge it into {target} with peft's merge_and_unload(), and name the merged folder",
        )
    if (path / "params.json").is_file():
        raise unsupported_model(
            f"{name} has params.json instead of config.json, a format that is not supported",
            "use the model's files in the format of transformers",
        )
    raise ModelError(f"there is no config.json in {path}", file=str(path / "config.json"))


def unsupported_model(problem: str, remedy: str) -> UnsupportedModel:
    """Return the error whose message has a problem and its remedy."""
    return UnsupportedModel(f"{problem}; {remedy}", remedy=remedy)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file of a model folder. Raises ModelError with the file's name."""
    return parse_json(read_file(path), path)


def read_file(path: Path) -> bytes:
    """Read a file of a model folder. Raises ModelError with the file's name."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise ModelError(f"there is no file {path.name} in {path.parent}", file=str(path)) from error
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}", file=str(path)) from error


def parse_json(content: bytes, path: Path) -> dict[str, Any]:
    """Return the JSON object that a file has. Raises ModelError with the file's name."""
    try:
        fields = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"cannot read {path}: {error}", file=str(path)) from error
    if not isinstance(fields, dict):
        raise ModelError(f"{path} must contain a JSON object, got {type(fields).__name__}", file=str(path))
    return fields


def weight_files(folder: Path) -> dict[Path, tuple[str, ...]]:
    """Return the folder's weight files, each with the tensors that the index assigns to it.

    Raises ModelError for a missing file and an invalid index, UnsupportedModel for weights in another format.
    """
    if (folder / SINGLE_FILE).is_file():
        return {folder / SINGLE_FILE: ()}
    if not (folder / INDEX_FILE).is_file():
        raise _no_weights(folder)
    places = read_json(folder / INDEX_FILE).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ModelError(f"{folder / INDEX_FILE} has no weight_map", file=str(folder / INDEX_FILE))
    files: dict[Path, tuple[str, ...]] = {}
    for name, shard in places.items():
        if not isinstance(shard, str) or shard != Path(shard).name or not shard.endswith(".safetensors"):
            message = f"{folder / INDEX_FILE} lists {name} in {shard!r}, which is not a safetensors file in this folder"
            raise ModelError(message, file=str(folder / INDEX_FILE), tensor=name)
        files[folder / shard] = (*files.get(folder / shard, ()), name)
    for file_path in files:
        if not file_path.is_file():
            raise ModelError(
                f"there is no file {file_path.name} in {folder}, but {INDEX_FILE} lists it", file=str(file_path)
            )
    for file_path in sorted(folder.glob(SHARDS)):
        if file_path not in files:
            message = f"{INDEX_FILE} does not list the shard {file_path}; the folder seems to mix two checkpoints"
            raise ModelError(message, file=str(file_path))
    return files


def check_weight_file(file: Path) -> None:
    """Raise ModelError for a safetensors file whose header and size do not fit. Reads only the header."""
    problem = ""
    try:
        with file.open("rb") as stream:
            size, header_bytes = file.stat().st_size, int.from_bytes(stream.read(HEADER_LENGTH_BYTES), "little")
            if HEADER_LENGTH_BYTES + header_bytes > size:
                problem = f"it has {size} bytes, fewer than its header"
            else:
                header = json.loads(stream.read(header_bytes))
                ends = (entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
                expected = HEADER_LENGTH_BYTES + header_bytes + max(ends, default=0)
                problem = "" if size >= expected else f"it has {size} bytes, its header names {expected}"
    except OSError as error:
        problem = error.strerror or str(error)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        problem = "its header is not valid"
    if problem:
        raise ModelError(f"{file} is truncated or not a safetensors file: {problem}", file=str(file))


def _no_weights(folder: Path) -> ModelError:
    """Return the error for a folder without safetensors files."""
    missing = f"there is neither {SINGLE_FILE} nor {INDEX_FILE} in {folder}"
    for pattern, kind, remedy in (
        ("*.bin", "a pickle", "load the folder with transformers and save it again with save_pretrained()"),
        ("*.pth", "a pickle", "use the model's files in the format of transformers"),
    ):
        others = sorted(path.name for path in folder.glob(pattern))
        if others:
            return unsupported_model(f"{missing}, and {others[0]} is {kind}; only safetensors are supported", remedy)
    return ModelError(missing, file=str(folder / SINGLE_FILE))

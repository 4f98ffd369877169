"""gguf_folder, gguf_file_of: a GGUF file as a model folder, which has the small files of one made from the metadata.

    config.json, generation_config.json                           sizes, ends of sequences, sampling defaults
    tokenizer.json, tokenizer_config.json, chat_template.jinja    vocabulary, special tokens, templates
    gguf.json                                                     where the file is, and why a tokenizer is missing

So everything that reads a model folder reads a GGUF file as well; only the weights have a format of their own
(weights/formats/gguf.py). The folder is kept in the user's cache, CHAIRLIFT_CACHE or XDG_CACHE_HOME or ~/.cache, under
a digest of the path, size and time of the file: the next start does not make it again. Where nothing can be kept, it is
in a temporary folder that ends with the process. Imports no torch.
"""

import array
import atexit
import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chairlift.core.errors import ModelError, UnsupportedModel
from chairlift.model.config.gguf_config import config_fields
from chairlift.model.config.gguf_file import GGUFFile, read_gguf, split_paths
from chairlift.model.config.gguf_tensor_names import ROPE_DIVISORS
from chairlift.model.config.model_folder import read_json
from chairlift.text.gguf_generation import generation_fields
from chairlift.text.gguf_tokenizer import tokenizer_files

VERSION = 1
"""Of the files' contents; another version makes them again."""

POINTER = "gguf.json"


def gguf_folder(path: Path) -> Path:
    """Return the model folder of a GGUF file, or of any one of split files; makes it if it is not kept.

    Raises ModelError, with the file and the reason, for a file that is invalid, UnsupportedModel or
    UnsupportedArchitecture for one that Chairlift cannot run.
    """
    first = split_paths(Path(os.path.abspath(path.expanduser())))[0]
    cache, key = _cache(), _digest(first)
    folder = None if cache is None else cache / key
    if folder is not None and (folder / POINTER).is_file():
        return folder
    contents = folder_contents(read_gguf(first))
    if folder is not None:
        with contextlib.suppress(OSError):
            return _keep(folder, contents)
    temporary = Path(tempfile.mkdtemp(prefix="chairlift-gguf-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    try:
        _write(temporary, contents)
    except OSError as error:
        raise ModelError(f"the files made from {first} cannot be written to {temporary}: {error}") from error
    return temporary


def gguf_file_of(folder: Path) -> Path | None:
    """Return the GGUF file of a folder that gguf_folder made; None for another folder. Raises ModelError."""
    if not (folder / POINTER).is_file():
        return None
    file = read_json(folder / POINTER).get("file")
    if not isinstance(file, str):
        raise ModelError(f"{folder / POINTER} names no file", file=str(folder / POINTER))
    return Path(file)


def check_tokenizer(folder: Path) -> None:
    """Raise the error for which gguf_folder could not make a tokenizer; with a remedy it is an UnsupportedModel."""
    if not (folder / POINTER).is_file() or not (problem := read_json(folder / POINTER).get("tokenizer_problem")):
        return
    if (remedy := problem.get("remedy")) is not None:
        raise UnsupportedModel(str(problem["message"]), remedy=str(remedy))
    raise ModelError(str(problem["message"]))


def folder_contents(gguf: GGUFFile) -> dict[str, str]:
    """Return the names and texts of the files in the folder. Raises as gguf_folder."""
    tensors, metadata, name = gguf.tensors, gguf.metadata, str(gguf.path)
    fields = config_fields(
        metadata, {each.name: each.shape for each in tensors.values()}, name, rope_divisors=_rope_divisors(gguf),
        tensor_types={each.name: each.type.name for each in tensors.values()},
    )  # fmt: skip
    pointer: dict[str, Any] = {"file": name}
    files = {"config.json": _json(fields)}
    try:
        files |= tokenizer_files(metadata)
        files["generation_config.json"] = _json(generation_fields(metadata))
    except ModelError as error:  # the model itself may run with the tokenizer of another folder
        pointer["tokenizer_problem"] = {"message": f"{name}: {error.message}", "remedy": error.details.get("remedy")}
    return {**files, POINTER: _json(pointer)}


def _rope_divisors(gguf: GGUFFile) -> list[float] | None:
    """Return the numbers of the tensor of Llama 3's rotation, if there is one. Raises ModelError."""
    tensor = gguf.tensors.get(ROPE_DIVISORS)
    if tensor is None:
        return None
    if tensor.type.name != "F32":
        raise ModelError(
            f"tensor {tensor.name} in {tensor.file} has type {tensor.type.name}, expected F32", file=str(tensor.file)
        )
    values = array.array("f")
    try:
        with tensor.file.open("rb") as file:
            file.seek(tensor.offset)
            values.frombytes(file.read(tensor.num_bytes))
    except OSError as error:
        raise ModelError(f"cannot read {tensor.file}: {error.strerror or error}", file=str(tensor.file)) from error
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()


def _cache() -> Path | None:
    """Return the folder of all kept ones; None for a user without a home."""
    if (own := os.environ.get("CHAIRLIFT_CACHE")) is not None:
        return Path(own).expanduser().absolute() / "gguf"
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return base / "chairlift" / "gguf"


def _digest(first: Path) -> str:
    """Return a digest of the files' paths, sizes and times. Raises ModelError for a missing file."""
    digest = hashlib.sha256(str(VERSION).encode())
    for path in split_paths(first):
        try:
            status = path.stat()
        except OSError as error:
            raise ModelError(f"cannot read {path}: {error.strerror or error}", file=str(path)) from error
        digest.update(f"\n{path}\n{status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()[:24]


def _keep(folder: Path, contents: Mapping[str, str]) -> Path:
    """Make a folder as a whole; another process may make the same one. Raises OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder.parent))
    try:
        _write(made, contents)
        made.chmod(0o755)
        try:
            made.rename(folder)
        except OSError:
            if not (folder / POINTER).is_file():
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def _write(folder: Path, contents: Mapping[str, str]) -> None:
    for name, text in contents.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, indent=1)

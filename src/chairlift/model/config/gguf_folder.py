"""gguf_folder, gguf_file_of: a GGUF file as a model folder, which has the small files of one made from the metadata.

    config.json, generation_config.json                           sizes, ends of sequences, sampling defaults
    tokenizer.json, tokenizer_config.json, chat_template.jinja    vocabulary, special tokens, templates
    chairlift_gguf.json                       where the file and this folder are, and why a tokenizer is missing

So everything that reads a model folder reads a GGUF file as well; only the weights have a format of their own
(weights/formats/gguf.py). The folder is kept in the user's cache, CHAIRLIFT_CACHE or XDG_CACHE_HOME or ~/.cache, under
a digest of the path, size and time of the file and of the code that makes it: the next start does not make it again. A
kept folder that is damaged is made again. Where nothing can be kept, it is in a temporary folder that ends with the
process. Imports no torch.
"""

import array
import atexit
import contextlib
import functools
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from chairlift.core.errors import ModelError, UnsupportedModel
from chairlift.model.config.gguf_config import config_fields
from chairlift.model.config.gguf_file import GGUFFile, GGUFTensor, read_gguf, split_paths
from chairlift.model.config.gguf_tensor_names import ROPE_TENSORS
from chairlift.text import gguf_tokenizer
from chairlift.text.gguf_generation import generation_fields
from chairlift.text.gguf_tokenizer import REMEDY, template_files, tokenizer_files

POINTER = "chairlift_gguf.json"

UNFINISHED = ".unfinished-"
"""Beginning of the names of folders that are being made."""

UNFINISHED_SECONDS = 86_400
"""Age at which they are left by a process that was killed."""


def gguf_folder(path: Path) -> Path:
    """Return the model folder of a GGUF file, or of any one of split files; makes it if it is not kept.

    Raises ModelError, with the file and the reason, for a file that is invalid, UnsupportedModel or
    UnsupportedArchitecture for one that Chairlift cannot run.
    """
    first = split_paths(Path(os.path.abspath(path)))[0]
    cache, key = _cache(), _digest(first)
    folder = None if cache is None else cache / key
    if folder is not None and _is_whole(folder):
        return folder
    pointer, contents = folder_contents(read_gguf(first))
    if folder is not None:
        with contextlib.suppress(OSError):
            return _keep(folder, pointer, contents)
    temporary = Path(tempfile.mkdtemp(prefix="chairlift-gguf-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    try:
        _write(temporary, temporary, pointer, contents)
    except OSError as error:
        raise ModelError(f"the files made from {first} cannot be written to {temporary}: {error}") from error
    return temporary


def gguf_file_of(folder: Path) -> Path | None:
    """Return the GGUF file of a folder that gguf_folder made; None for another folder.

    A folder that was copied or downloaded is another one, whatever files it has.
    """
    pointer = _pointer(folder)
    return None if pointer is None else Path(pointer["file"])


def check_tokenizer(folder: Path) -> None:
    """Raise the error for which gguf_folder could not make a tokenizer; with a remedy it is an UnsupportedModel."""
    if (pointer := _pointer(folder)) is None or (problem := pointer.get("tokenizer_problem")) is None:
        return
    if (remedy := problem.get("remedy")) is not None:
        raise UnsupportedModel(str(problem["message"]), remedy=str(remedy))
    raise ModelError(str(problem["message"]))


def folder_contents(gguf: GGUFFile) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what the folder says about the file, and the names and texts of its files. Raises as gguf_folder."""
    tensors, metadata, name = gguf.tensors, gguf.metadata, str(gguf.path)
    fields = config_fields(
        metadata, {each.name: each.shape for each in tensors.values()}, name, rope_values=_rope_values(gguf),
        tensor_types={each.name: each.type.name for each in tensors.values()},
    )  # fmt: skip
    pointer: dict[str, Any] = {"file": name}
    files = {"config.json": _json(fields)}
    # The model itself may run with the tokenizer of another folder, and then needs the rest.
    parts: tuple[Callable[[], dict[str, str]], ...] = (
        lambda: template_files(metadata),
        lambda: {"generation_config.json": _json(generation_fields(metadata))},
        lambda: tokenizer_files(metadata),
    )
    for make in parts:
        try:
            files |= make()
        except ModelError as error:
            problem = {"message": f"{name}: {error.message}", "remedy": error.details.get("remedy", REMEDY)}
            pointer["tokenizer_problem"] = problem
    return pointer, files


def _rope_values(gguf: GGUFFile) -> dict[str, list[float]]:
    """Return the numbers of the tensors of factors of RoPE. Raises ModelError."""
    return {name: _numbers(gguf.tensors[name]) for name in ROPE_TENSORS if name in gguf.tensors}


def _numbers(tensor: GGUFTensor) -> list[float]:
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
    try:
        if own := os.environ.get("CHAIRLIFT_CACHE"):
            return Path(own).expanduser().absolute() / "gguf"
        base = Path(os.environ.get("XDG_CACHE_HOME", ""))
        return (base if base.is_absolute() else Path.home() / ".cache") / "chairlift" / "gguf"
    except RuntimeError:
        return None


def _digest(first: Path) -> str:
    """Return a digest of the code and of the files' paths, sizes and times. Raises ModelError for a missing file."""
    digest = hashlib.sha256(_code())
    for path in split_paths(first):
        try:
            status = path.stat()
        except OSError as error:
            raise ModelError(f"cannot read {path}: {error.strerror or error}", file=str(path)) from error
        digest.update(b"\n" + os.fsencode(path) + f"\n{status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()[:24]


@functools.cache
def _code() -> bytes:
    """Return a digest of the modules that make a folder: another version of them makes other files."""
    digest = hashlib.sha256()
    config, text = Path(__file__).parent, Path(gguf_tokenizer.__file__).parent
    modules = (*config.glob("gguf_*.py"), *(config / "architectures").glob("*.py"), *text.glob("gguf_*.py"))
    for module in sorted(modules):
        digest.update(module.read_bytes())
    return digest.digest()


def _pointer(folder: Path) -> dict[str, Any] | None:
    """Return what a folder says about its file; None for a folder that was not made here."""
    try:
        pointer = json.loads((folder / POINTER).read_text(encoding="utf-8"))
        is_own = pointer["folder"] == os.path.realpath(folder) and isinstance(pointer["file"], str)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return pointer if is_own else None


def _is_whole(folder: Path) -> bool:
    """Return whether a kept folder is this user's and has all of its files with their sizes."""
    pointer = _pointer(folder)
    try:
        is_own = not hasattr(os, "getuid") or folder.stat().st_uid == os.getuid()
        sizes = {} if pointer is None else dict(pointer["sizes"])
        return is_own and bool(sizes) and all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, KeyError, TypeError, ValueError):
        return False


def _keep(folder: Path, pointer: Mapping[str, Any], contents: Mapping[str, str]) -> Path:
    """Make a folder as a whole; another process may make the same one. Raises OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_unfinished(folder.parent)
    made = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=folder.parent))
    try:
        _write(made, folder, pointer, contents)
        made.chmod(0o755)
        try:
            made.rename(folder)
        except OSError:
            if not _is_whole(folder):  # damaged, or that of another user
                damaged = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=folder.parent))
                folder.rename(damaged / "damaged")
                with contextlib.suppress(OSError):  # another process has been faster
                    made.rename(folder)
                shutil.rmtree(damaged, ignore_errors=True)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def _remove_unfinished(cache: Path) -> None:
    for each in cache.glob(f"{UNFINISHED}*"):
        with contextlib.suppress(OSError):
            if time.time() - each.stat().st_mtime > UNFINISHED_SECONDS:
                shutil.rmtree(each, ignore_errors=True)


def _write(folder: Path, final: Path, pointer: Mapping[str, Any], contents: Mapping[str, str]) -> None:
    """Write the files of a folder that is renamed to `final`."""
    sizes = {}
    for name, text in contents.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data := text.encode())
        sizes[name] = len(data)
    (folder / POINTER).write_text(
        _json({**pointer, "folder": os.path.realpath(final), "sizes": sizes}), encoding="utf-8"
    )


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1)  # in ASCII: a path need not be valid Unicode

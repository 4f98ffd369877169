"""resolve_model: returns the folder of a model on disk or downloaded from the Hugging Face hub. Imports no torch."""

import re
from pathlib import Path

from chairlift.core.errors import ModelError
from chairlift.model.config.gguf_choice import (
    DEFAULT_TAGS,
    choose_gguf,
    has_all_parts,
    is_model,
    split_siblings,
    split_tag,
)
from chairlift.model.config.gguf_file import is_gguf
from chairlift.model.config.gguf_folder import check_tokenizer, gguf_folder
from chairlift.model.config.hub_download import (
    CONFIG_PATTERNS,
    PATTERNS,
    TOKENIZER_PATTERNS,
    cached_files,
    download,
    download_files,
    repository_files,
)
from chairlift.model.config.model_folder import require_model

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")


def resolve_model(
    name: str, revision: str | None = None, *, config_only: bool = False, hf_file: str | None = None
) -> Path:
    """Return the folder of a model.

    Args:
        name: a folder, a GGUF file, a hub id such as "Qwen/Qwen3-0.6B", or one with a type of quantization such as
            "owner/name-GGUF:Q4_K_M" (gguf_choice.py).
        revision: branch, tag or commit on the hub; None for a folder or a file.
        config_only: of a hub id only config.json is needed, and no weights are downloaded; those of a GGUF file are.
        hf_file: the GGUF file of the hub id, or of the folder.

    The hub's cache is read first, the network only for missing files; HF_HUB_OFFLINE and HF_HOME are respected. The
    folder of a GGUF file is made (gguf_folder.py).
    Raises ModelError with one sentence if the model or its config.json is missing, or the hub does not provide it;
    UnsupportedModel as require_model and gguf_folder do.
    """
    if not name:
        raise ModelError("the name of the model is empty; name a folder or a hub id", model=name)
    path, tag = _existing(name)
    if path is not None:
        if revision is not None:
            kind = "folder" if path.is_dir() else "file"
            raise ModelError(f"{name} is a {kind}, which has no revision {revision!r}", model=name)
        return _local(path, name, tag, hf_file)
    repository, tag = split_tag(name)
    if repository.lower().endswith(".gguf"):
        raise ModelError(f"there is no file {name!r}", model=name)
    if not HUB_ID.fullmatch(repository) or ".." in repository or "--" in repository:
        raise ModelError(f"there is no model folder {name!r}, and it is not a hub id like owner/name", model=name)
    if tag is not None or hf_file is not None:
        return _hub_gguf(repository, revision, tag, hf_file)
    cached = cached_files(repository, revision)
    if not any(each.endswith(".safetensors") for each in cached) and _default_of(cached):
        return _hub_gguf(repository, revision, None, None)
    try:
        folder = download(repository, revision, CONFIG_PATTERNS if config_only else PATTERNS)
    except ModelError:
        if any(map(is_model, cached)):
            return _hub_gguf(repository, revision, None, None)
        raise
    is_enough = (folder / "config.json").is_file() if config_only else any(folder.glob("*.safetensors"))
    if not is_enough and any(map(is_model, repository_files(repository, revision))):
        return _hub_gguf(repository, revision, None, None)
    return require_model(folder, name)


def resolve_tokenizer(name: str) -> Path:
    """Return the folder of a tokenizer: a folder with tokenizer.json, a GGUF file, or a hub id.

    Raises ModelError with one sentence if there is none, UnsupportedModel for a GGUF file's that is not supported.
    """
    path, tag = _existing(name) if name else (None, None)
    if path is None:
        repository, tag = split_tag(name)
        if not HUB_ID.fullmatch(repository) or ".." in repository or "--" in repository:
            raise ModelError(f"there is no tokenizer {name!r}, and it is not a hub id like owner/name", model=name)
        if tag is not None:
            path = _hub_gguf(repository, None, tag, None)
        else:
            path = download(repository, None, TOKENIZER_PATTERNS)
    elif path.is_file() or not (path / "tokenizer.json").is_file():
        path = _local(path, name, tag, None)
    check_tokenizer(path)
    if not (path / "tokenizer.json").is_file():
        raise ModelError(f"there is no tokenizer.json in {path}", file=str(path / "tokenizer.json"))
    return path


def _existing(name: str) -> tuple[Path | None, str | None]:
    """Return the folder or file of a name, and the type behind a folder's name; None without one."""
    folder, separator, tag = name.rpartition(":")
    try:
        if (path := Path(name).expanduser()).exists():
            return path, None
        if separator and (path := Path(folder).expanduser()).is_dir():
            return path, tag
    except (OSError, RuntimeError, ValueError):  # too long, the home folder of an unknown user, or no possible path
        pass
    return None, None


def _default_of(files: list[str]) -> list[str]:
    """Return the files of the default type, if all of them are there; empty if not."""
    try:
        chosen = choose_gguf(files, DEFAULT_TAGS[0], "")
    except ModelError:
        return []
    return chosen if has_all_parts(chosen) else []


def _local(path: Path, name: str, tag: str | None, hf_file: str | None) -> Path:
    """Return the folder of a model on this machine."""
    _check_one_choice(name, tag, hf_file)
    if path.is_file() and hf_file is not None:
        raise ModelError(f"{name} is a file, which has no file {hf_file!r}", model=name)
    if path.is_file() and (is_gguf(path) or path.suffix.lower() == ".gguf"):
        return gguf_folder(path)
    if hf_file is not None:
        if not (path / hf_file).is_file():
            raise ModelError(f"there is no file {hf_file} in {path}", file=str(path / hf_file))
        return gguf_folder(path / hf_file)
    files = sorted(each.name for each in path.iterdir()) if path.is_dir() else []
    if tag is not None or (any(map(is_model, files)) and not any(path.glob("*.safetensors"))):
        return gguf_folder(path / choose_gguf(files, tag, name)[0])
    return require_model(path, name)


def _check_one_choice(name: str, tag: str | None, hf_file: str | None) -> None:
    if tag is not None and hf_file is not None:
        raise ModelError(f"{name} is given with the type {tag} and with the file {hf_file}; leave one out", model=name)


def _hub_gguf(repository: str, revision: str | None, tag: str | None, hf_file: str | None) -> Path:
    """Download a GGUF file of a hub id and the files that belong to it; return its folder."""
    _check_one_choice(repository, tag, hf_file)

    def choose(files: list[str], tag: str | None) -> list[str]:
        if hf_file is None:
            return choose_gguf(files, tag, repository)
        if hf_file not in files or not is_model(hf_file):
            raise ModelError(f"{repository} has no GGUF file {hf_file} of a model", model=repository)
        return split_siblings(hf_file, files)

    # What is in the cache decides nothing: without a tag another file than the default may be there.
    try:
        chosen = choose(cached_files(repository, revision), tag or DEFAULT_TAGS[0])
    except ModelError:
        chosen = []
    if not chosen or not has_all_parts(chosen):
        chosen = choose(repository_files(repository, revision), tag)
        if not has_all_parts(chosen):
            raise ModelError(f"{repository} has only {len(chosen)} of the files that belong to {chosen[0]}")
    return gguf_folder(download_files(repository, revision, chosen) / chosen[0])

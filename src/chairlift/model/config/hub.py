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
    path, tag = Path(name).expanduser(), None
    if not path.exists() and ":" in name and Path(name.rpartition(":")[0]).expanduser().is_dir():
        path, tag = Path(name.rpartition(":")[0]).expanduser(), name.rpartition(":")[2]
    if path.exists() and revision is not None:
        kind = "folder" if path.is_dir() else "file"
        raise ModelError(f"{name} is a {kind}, which has no revision {revision!r}", model=name)
    if path.exists():
        return _local(path, name, tag, hf_file)
    repository, tag = split_tag(name)
    if not HUB_ID.fullmatch(repository) or ".." in repository or "--" in repository:
        raise ModelError(f"there is no model folder {name!r}, and it is not a hub id like owner/name", model=name)
    if tag is not None or hf_file is not None:
        return _hub_gguf(repository, revision, tag, hf_file)
    try:
        folder = download(repository, revision, CONFIG_PATTERNS if config_only else PATTERNS)
    except ModelError:
        if any(map(is_model, cached_files(repository, revision))):
            return _hub_gguf(repository, revision, None, None)
        raise
    has_weights = config_only or any(folder.glob("*.safetensors"))
    if not has_weights and any(map(is_model, repository_files(repository, revision))):
        return _hub_gguf(repository, revision, None, None)
    return require_model(folder, name)


def resolve_tokenizer(name: str) -> Path:
    """Return the folder of a tokenizer: a folder with tokenizer.json, a GGUF file, or a hub id.

    Raises ModelError with one sentence if there is none, UnsupportedModel for a GGUF file's that is not supported.
    """
    path = Path(name).expanduser()
    if path.is_file():
        folder = gguf_folder(path)
        check_tokenizer(folder)
        return folder
    if not path.is_dir():
        if not HUB_ID.fullmatch(name) or ".." in name or "--" in name:
            raise ModelError(f"there is no tokenizer {name!r}, and it is not a hub id like owner/name", model=name)
        path = download(name, None, TOKENIZER_PATTERNS)
    if not (path / "tokenizer.json").is_file():
        raise ModelError(f"there is no tokenizer.json in {path}", file=str(path / "tokenizer.json"))
    return path


def _local(path: Path, name: str, tag: str | None, hf_file: str | None) -> Path:
    """Return the folder of a model on this machine."""
    if path.is_file() and (is_gguf(path) or path.suffix == ".gguf"):
        return gguf_folder(path)
    if hf_file is not None:
        if not (path / hf_file).is_file():
            raise ModelError(f"there is no file {hf_file} in {path}", file=str(path / hf_file))
        return gguf_folder(path / hf_file)
    files = sorted(each.name for each in path.glob("*.gguf")) if path.is_dir() else []
    if tag is not None or (any(map(is_model, files)) and not any(path.glob("*.safetensors"))):
        return gguf_folder(path / choose_gguf(files, tag, name)[0])
    return require_model(path, name)


def _hub_gguf(repository: str, revision: str | None, tag: str | None, hf_file: str | None) -> Path:
    """Download a GGUF file of a hub id and the files that belong to it; return its folder."""

    def choose(files: list[str], tag: str | None) -> list[str]:
        if hf_file is None:
            return choose_gguf(files, tag, repository)
        if hf_file not in files:
            raise ModelError(f"{repository} has no file {hf_file}", model=repository)
        return split_siblings(hf_file, files)

    # What is in the cache decides nothing: without a tag another file than the default may be there.
    try:
        chosen = choose(cached_files(repository, revision), tag or DEFAULT_TAGS[0])
    except ModelError:
        chosen = []
    if not chosen or not has_all_parts(chosen):
        chosen = choose(repository_files(repository, revision), tag)
    return gguf_folder(download_files(repository, revision, chosen) / chosen[0])

"""download, download_files, repository_files: files of a model on the Hugging Face hub. Imports no torch.

The hub's cache is read first. Progress bars are those of the hub's client.
"""

import glob
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from chairlift.core.errors import ModelError
from chairlift.model.config.model_folder import read_json

PATTERNS = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "*.txt")
"""Files to download: config, tokenizer, template and safetensors; never code and never pickles."""

TOKENIZER_PATTERNS = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.json", "*.jinja",
)  # fmt: skip
"""Files to download of a model whose tokenizer alone is used."""

CONFIG_PATTERNS = ("config.json",)
"""Files to download of a model that is not loaded."""

IGNORED_PATTERNS = ("*/*", "consolidated*.safetensors")
"""Files to ignore: subfolders hold other formats, and Mistral's second copy of the weights doubles the download."""

T = TypeVar("T")


def download(repository: str, revision: str | None, patterns: Sequence[str]) -> Path:
    """Return the folder with the files of these patterns. Raises ModelError if the hub does not provide them."""

    def snapshot(cache_only: bool) -> Path:
        from huggingface_hub import snapshot_download

        return Path(
            snapshot_download(
                repository, revision=revision, allow_patterns=list(patterns), ignore_patterns=list(IGNORED_PATTERNS),
                local_files_only=cache_only,
            )
        )  # fmt: skip

    cached = _cached(lambda: snapshot(cache_only=True))
    if cached is not None and _is_complete(cached, patterns):
        return cached
    return _online(repository, revision, lambda: snapshot(cache_only=False))


def download_files(repository: str, revision: str | None, files: Sequence[str]) -> Path:
    """Return the folder with these files of a repository, and no others. Raises ModelError as download does."""

    def snapshot(cache_only: bool) -> Path:
        from huggingface_hub import snapshot_download

        return Path(
            snapshot_download(
                repository, revision=revision, allow_patterns=[glob.escape(file) for file in files],
                local_files_only=cache_only,
            )
        )  # fmt: skip

    cached = _cached(lambda: snapshot(cache_only=True))
    if cached is not None and all((cached / file).is_file() for file in files):
        return cached
    return _online(repository, revision, lambda: snapshot(cache_only=False))


def repository_files(repository: str, revision: str | None) -> list[str]:
    """Return the names of all files of a repository; where the hub cannot be asked, of those in the cache.

    Raises ModelError as download does.
    """

    def listed() -> list[str]:
        from huggingface_hub import list_repo_files

        return list_repo_files(repository, revision=revision)

    try:
        return _online(repository, revision, listed)
    except ModelError:
        if not (cached := cached_files(repository, revision)):
            raise
        return cached


def cached_files(repository: str, revision: str | None) -> list[str]:
    """Return the names of the files of a repository that are in the cache as a whole."""

    def snapshot() -> Path:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(repository, revision=revision, local_files_only=True))

    if (folder := _cached(snapshot)) is None:
        return []
    return sorted(each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file())


def _cached(call: Callable[[], T]) -> T | None:
    """Return what is in the cache; None if it is not there or incomplete."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return call()
    except (LocalEntryNotFoundError, OSError, ValueError):
        return None


def _online(repository: str, revision: str | None, call: Callable[[], T]) -> T:
    try:
        return call()
    # The hub's client raises errors of several libraries (its own, httpx, requests, OSError); each means "not here".
    except Exception as error:
        where = repository if revision is None else f"{repository} at revision {revision}"
        raise ModelError(
            f"there is no model folder {repository!r}, and {where} cannot be downloaded from the hub: {_reason(error)}",
            model=repository, revision=revision,
        ) from error  # fmt: skip


def _reason(error: Exception) -> str:
    """Return a short reason for the hub's error; the hub's own messages have many lines."""
    from huggingface_hub import constants, errors

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set and the local cache lacks it"
    if isinstance(error, errors.GatedRepoError):
        return "it is gated, accept its terms on the hub and log in"
    if isinstance(error, errors.RevisionNotFoundError):
        return "there is no such revision"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "there is no such model, or it is private"
    if isinstance(error, errors.LocalEntryNotFoundError):
        return "the hub cannot be reached and the local cache lacks it"
    return (" ".join(str(error).split()) or type(error).__name__)[:200]


def _is_complete(folder: Path, patterns: Sequence[str]) -> bool:
    """Return whether the folder has all files that its index names; an interrupted download lacks some."""
    if patterns is TOKENIZER_PATTERNS:
        return (folder / "tokenizer.json").is_file()
    if not (folder / "config.json").is_file():
        return False
    if patterns is CONFIG_PATTERNS or (folder / "model.safetensors").is_file():
        return True
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return False
    places = read_json(index).get("weight_map")
    return isinstance(places, dict) and all((folder / str(shard)).is_file() for shard in places.values())

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
    return _download(
        repository, revision, lambda folder: _is_complete(folder, patterns),
        list(patterns), list(IGNORED_PATTERNS),
    )  # fmt: skip


def download_files(repository: str, revision: str | None, files: Sequence[str]) -> Path:
    """Return the folder with these files of a repository, and no others. Raises ModelError as download does."""
    return _download(
        repository, revision, lambda folder: all((folder / file).is_file() for file in files),
        [glob.escape(file) for file in files],
    )  # fmt: skip


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
    if (folder := _cached(repository, revision)) is None:
        return []
    return sorted(each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file())


def _download(
    repository: str, revision: str | None, is_complete: Callable[[Path], bool],
    patterns: list[str], ignored: list[str] | None = None,
) -> Path:  # fmt: skip
    """Return the folder in the cache if it is complete, else that of the hub."""
    from huggingface_hub import snapshot_download

    cached = _cached(repository, revision, patterns, ignored)
    if cached is not None and is_complete(cached):
        return cached
    return _online(
        repository, revision,
        lambda: Path(
            snapshot_download(repository, revision=revision, allow_patterns=patterns, ignore_patterns=ignored)
        ),
    )  # fmt: skip


def _cached(
    repository: str, revision: str | None, patterns: list[str] | None = None, ignored: list[str] | None = None
) -> Path | None:  # fmt: skip
    """Return the folder in the cache; None if it is not there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(
                repository, revision=revision, allow_patterns=patterns, ignore_patterns=ignored, local_files_only=True
            )
        )  # fmt: skip
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

"""resolve_model: returns the folder of a model on disk or downloaded from the Hugging Face hub. Imports no torch."""

import re
from collections.abc import Sequence
from pathlib import Path

from chairlift.core.errors import ModelError
from chairlift.model.config.model_folder import read_json, require_model

PATTERNS = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "*.txt")
"""Files to download: config, tokenizer, template and safetensors; never code and never pickles."""

CONFIG_PATTERNS = ("config.json",)
"""Files to download of a model that is not loaded."""

IGNORED_PATTERNS = ("*/*", "consolidated*.safetensors")
"""Files to ignore: subfolders hold other formats, and Mistral's second copy of the weights doubles the download."""

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")


def resolve_model(name: str, revision: str | None = None, *, config_only: bool = False) -> Path:
    """Return the folder of a model.

    Args:
        name: a folder, or a hub id such as "Qwen/Qwen3-0.6B".
        revision: branch, tag or commit on the hub; None for a folder.
        config_only: of a hub id only config.json is needed, and no weights are downloaded.

    The hub's cache is read first, the network only for missing files; HF_HUB_OFFLINE and HF_HOME are respected.
    Raises ModelError with one sentence if the folder or its config.json is missing, or the hub does not provide it;
    UnsupportedModel as require_model does.
    """
    if not name:
        raise ModelError("the name of the model is empty; name a folder or a hub id", model=name)
    folder = Path(name).expanduser()
    if folder.is_dir() and revision is not None:
        raise ModelError(f"{name} is a folder, which has no revision {revision!r}", model=name)
    if folder.exists():
        return require_model(folder, name)
    if not HUB_ID.fullmatch(name) or ".." in name or "--" in name:
        raise ModelError(f"there is no model folder {name!r}, and it is not a hub id like owner/name", model=name)
    return require_model(_download(name, revision, CONFIG_PATTERNS if config_only else PATTERNS), name)


def _download(name: str, revision: str | None, patterns: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    def snapshot(cache_only: bool) -> Path:
        return Path(
            snapshot_download(
                name, revision=revision, allow_patterns=list(patterns), ignore_patterns=list(IGNORED_PATTERNS),
                local_files_only=cache_only,
            )
        )  # fmt: skip

    try:
        cached = snapshot(cache_only=True)
        if _is_complete(cached, patterns):
            return cached
    except (LocalEntryNotFoundError, OSError, ValueError):
        pass  # not in the cache, or incomplete
    try:
        return snapshot(cache_only=False)
    # The hub's client raises errors of several libraries (its own, httpx, requests, OSError); each means "not here".
    except Exception as error:
        where = name if revision is None else f"{name} at revision {revision}"
        raise ModelError(
            f"there is no model folder {name!r}, and {where} cannot be downloaded from the hub: {_reason(error)}",
            model=name, revision=revision,
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
    if not (folder / "config.json").is_file():
        return False
    if patterns is CONFIG_PATTERNS or (folder / "model.safetensors").is_file():
        return True
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return False
    places = read_json(index).get("weight_map")
    return isinstance(places, dict) and all((folder / str(shard)).is_file() for shard in places.values())

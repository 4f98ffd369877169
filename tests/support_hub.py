"""Fakes of the Hugging Face hub: a snapshot in a cache and on the network, and a repository of files."""

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors
from huggingface_hub.utils import filter_repo_objects

NOT_CACHED = errors.LocalEntryNotFoundError("not here\nat all")


class PlayedHub:
    """A fake snapshot_download with a cache and a network, each a folder or an error; records its calls."""

    def __init__(self, cache: Path | Exception, network: Path | Exception) -> None:
        self.cache, self.network = cache, network
        self.calls: list[dict[str, Any]] = []

    def __call__(self, name: str, *, local_files_only: bool = False, **wanted: Any) -> str:
        self.calls.append({"name": name, "local": local_files_only, **wanted})
        answer = self.cache if local_files_only else self.network
        if isinstance(answer, Exception):
            raise answer
        return str(answer)


def play(monkeypatch: pytest.MonkeyPatch, cache: Path | Exception, network: Path | Exception) -> PlayedHub:
    hub = PlayedHub(cache, network)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    return hub


def whole(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_text("")
    return folder


class PlayedRepository:
    """A fake hub with one repository whose files are in a folder, and a cache that has some of them."""

    def __init__(self, files: Path, cache: Path, *, is_online: bool = True) -> None:
        self.files, self.cache, self.is_online = files, cache, is_online
        self.downloads: list[str] = []
        cache.mkdir(exist_ok=True)

    def snapshot_download(
        self, name: str, *, allow_patterns: list[str] | None = None, local_files_only: bool = False, **_: Any
    ) -> str:
        if local_files_only:
            if not any(self.cache.iterdir()):
                raise NOT_CACHED
            return str(self.cache)
        names = self.list_repo_files(name)
        wanted = filter_repo_objects(names, allow_patterns=allow_patterns)
        for each in sorted(wanted):
            self.downloads.append(each)
            (self.cache / each).parent.mkdir(exist_ok=True)
            (self.cache / each).write_bytes((self.files / each).read_bytes())
        return str(self.cache)

    def list_repo_files(self, name: str, **_: Any) -> list[str]:
        if not self.is_online:
            raise ConnectionError("no route")
        return sorted(each.relative_to(self.files).as_posix() for each in self.files.rglob("*") if each.is_file())

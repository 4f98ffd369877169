"""Downloads from a fake hub: what is asked for, what the cache has, and files of a repository."""

from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from chairlift.core.errors import ModelError
from chairlift.model.config.hub_download import (
    PATTERNS,
    TOKENIZER_PATTERNS,
    cached_files,
    download,
    download_files,
    repository_files,
)
from support_hub import NOT_CACHED, PlayedRepository, play, whole


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


def test_only_data_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub = play(monkeypatch, NOT_CACHED, whole(tmp_path / "fetched"))
    download("name", None, PATTERNS)
    wanted = hub.calls[-1]
    files = [
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
        "model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json",
        "pytorch_model.bin", "modeling_x.py", "model.gguf", "consolidated.safetensors", "onnx/config.json", "a.pt",
    ]  # fmt: skip
    kept = huggingface_hub.utils.filter_repo_objects(
        files, allow_patterns=wanted["allow_patterns"], ignore_patterns=wanted["ignore_patterns"]
    )
    assert list(kept) == files[:8]


@pytest.mark.parametrize("lacks", ["config.json", "model.safetensors", "shard"])
def test_a_cached_snapshot_that_lacks_a_file_is_completed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lacks: str
) -> None:
    cached = whole(tmp_path / "cached")
    if lacks == "shard":
        (cached / "model.safetensors").rename(cached / "model-1.safetensors")
        places = '{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}'
        (cached / "model.safetensors.index.json").write_text(places)
    else:
        (cached / lacks).unlink()
    hub = play(monkeypatch, cached, whole(tmp_path / "fetched"))
    assert download("owner/name", None, PATTERNS) == tmp_path / "fetched"
    assert [call["local"] for call in hub.calls] == [True, False]


def test_a_cached_tokenizer_needs_no_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    hub = play(monkeypatch, tmp_path, AssertionError("asked the network"))
    assert download("owner/name", None, TOKENIZER_PATTERNS) == tmp_path
    assert [call["local"] for call in hub.calls] == [True]


def test_files_are_listed_by_the_hub_or_by_the_cache_and_downloaded_by_their_very_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for name in ("a.gguf", "b[1].gguf", "b1.gguf"):
        (files / name).write_text(name)
    hub = PlayedRepository(files, tmp_path / "cache")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    monkeypatch.setattr(huggingface_hub, "list_repo_files", hub.list_repo_files)
    assert cached_files("owner/name", None) == []
    assert repository_files("owner/name", None) == ["a.gguf", "b1.gguf", "b[1].gguf"]
    folder = download_files("owner/name", None, ["b[1].gguf"])
    assert hub.downloads == ["b[1].gguf"] and (folder / "b[1].gguf").is_file()
    hub.is_online = False
    assert repository_files("owner/name", None) == cached_files("owner/name", None) == ["b[1].gguf"]
    assert download_files("owner/name", None, ["b[1].gguf"]) == folder
    with pytest.raises(ModelError, match="cannot be downloaded from the hub: no route"):
        download_files("owner/name", None, ["a.gguf"])


def test_without_hub_and_cache_there_is_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, NOT_CACHED, NOT_CACHED)

    def fail(*_: object, **__: object) -> list[str]:
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "list_repo_files", fail)
    with pytest.raises(ModelError, match="no route"):
        repository_files("owner/name", None)

"""resolve_model: folders, hub ids, and one clear error if neither exists, with a fake hub."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants, errors

from chairlift.core.errors import ModelError, UnsupportedModel
from chairlift.model.config.hub import resolve_model


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


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


def play(monkeypatch: pytest.MonkeyPatch, cache: Path | Exception, network: Path | Exception) -> PlayedHub:
    hub = PlayedHub(cache, network)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    return hub


def whole(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_text("")
    return folder


NOT_CACHED = errors.LocalEntryNotFoundError("not here\nat all")


def answered(kind: type[Exception]) -> Exception:
    """Make an error of the hub's client without the HTTP response that its constructor wants."""
    error = kind.__new__(kind)
    Exception.__init__(error, "404 Client Error.\n\nlines and lines")
    return error


def test_a_folder_is_itself(tmp_path: Path) -> None:
    assert resolve_model(str(whole(tmp_path / "m"))) == tmp_path / "m"


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json in "):
        resolve_model(str(tmp_path))


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("")
    with pytest.raises(ModelError, match="is a file, not a model folder"):
        resolve_model(str(tmp_path / "model.safetensors"))
    (tmp_path / "model.gguf").write_text("")
    with pytest.raises(UnsupportedModel, match="is a GGUF file, which is not supported"):
        resolve_model(str(tmp_path / "model.gguf"))


def test_a_folder_has_no_revision(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a folder, which has no revision 'main'"):
        resolve_model(str(whole(tmp_path / "m")), "main")


@pytest.mark.parametrize("name", ["/no/such/folder", "./missing", "a/b/c", "../up", "a b", "-x", "a..b/c"])
def test_what_cannot_be_a_hub_id_never_reaches_the_hub(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    hub = play(monkeypatch, NOT_CACHED, NOT_CACHED)
    with pytest.raises(ModelError, match="no model folder"):
        resolve_model(name)
    assert hub.calls == []


def test_no_name_is_refused() -> None:
    with pytest.raises(ModelError, match="the name of the model is empty; name a folder or a hub id"):
        resolve_model("")


def test_a_whole_cached_snapshot_needs_no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub = play(monkeypatch, whole(tmp_path / "cached"), AssertionError("asked the network"))
    assert resolve_model("owner/name", "abc") == tmp_path / "cached"
    assert [(call["name"], call["local"], call["revision"]) for call in hub.calls] == [("owner/name", True, "abc")]


def test_of_a_model_that_is_not_loaded_only_the_config_is_downloaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cached, fetched = whole(tmp_path / "cached"), whole(tmp_path / "fetched")
    (cached / "model.safetensors").unlink()
    hub = play(monkeypatch, cached, fetched)
    assert resolve_model("owner/name", config_only=True) == cached, "a cached config needs no weights"
    (cached / "config.json").unlink()
    assert resolve_model("owner/name", config_only=True) == fetched
    assert [call["allow_patterns"] for call in hub.calls] == [["config.json"]] * 3


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
    assert resolve_model("owner/name") == tmp_path / "fetched"
    assert [call["local"] for call in hub.calls] == [True, False]


def test_only_data_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub = play(monkeypatch, NOT_CACHED, whole(tmp_path / "fetched"))
    resolve_model("name")
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


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (NOT_CACHED, "the hub cannot be reached and the local cache lacks it"),
        (answered(errors.RepositoryNotFoundError), "there is no such model, or it is private"),
        (answered(errors.GatedRepoError), "it is gated"),
        (answered(errors.RevisionNotFoundError), "there is no such revision"),
        (ConnectionError("no\nroute"), "no route"),
        (OSError(), "OSError"),
    ],
)
def test_the_hubs_failures_are_one_sentence(monkeypatch: pytest.MonkeyPatch, network: Exception, said: str) -> None:
    play(monkeypatch, NOT_CACHED, network)
    with pytest.raises(ModelError) as caught:
        resolve_model("owner/name", "v1")
    sentence = str(caught.value)
    assert sentence.startswith(
        "there is no model folder 'owner/name', and owner/name at revision v1 cannot be downloaded from the hub"
    )
    assert said in sentence
    assert "\n" not in sentence


@pytest.mark.full
def test_offline_mode_is_respected_and_named(tmp_path: Path) -> None:
    code = (
        "import socket; socket.socket.connect = None\n"
        "from chairlift.model.config.hub import resolve_model\n"
        "try: resolve_model('owner/name')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    assert done.stdout.startswith("ModelError there is no model folder 'owner/name'")
    assert "HF_HUB_OFFLINE is set and the local cache lacks it" in done.stdout


def test_a_real_cache_layout_is_found_offline(tmp_path: Path) -> None:
    commit = "0" * 40
    repository = tmp_path / "hub" / "models--owner--name"
    whole_snapshot = repository / "snapshots" / commit
    whole_snapshot.mkdir(parents=True)
    whole(whole_snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    code = "from chairlift.model.config.hub import resolve_model; print(resolve_model('owner/name'))"
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == str(whole_snapshot)

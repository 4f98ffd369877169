"""resolve_model: folders, hub ids, and one clear error if neither exists, with a fake hub."""

import json
import re
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants, errors

from chairlift.core.errors import ModelError
from chairlift.model.config.hub import resolve_model, resolve_tokenizer
from support_gguf import smollm2_file
from support_gguf_models import write_gguf
from support_hub import NOT_CACHED, PlayedRepository, play, whole


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


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
    with pytest.raises(ModelError, match="is a file, but neither a model folder nor a GGUF file"):
        resolve_model(str(tmp_path / "model.safetensors"))
    (tmp_path / "model.gguf").write_text("")
    with pytest.raises(ModelError, match=r"model\.gguf is not a GGUF file"):
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
    assert {(call["name"], call["local"], call["revision"]) for call in hub.calls} == {("owner/name", True, "abc")}


def test_of_a_model_that_is_not_loaded_only_the_config_is_downloaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cached, fetched = whole(tmp_path / "cached"), whole(tmp_path / "fetched")
    (cached / "model.safetensors").unlink()
    hub = play(monkeypatch, cached, fetched)
    assert resolve_model("owner/name", config_only=True) == cached, "a cached config needs no weights"
    (cached / "config.json").unlink()
    assert resolve_model("owner/name", config_only=True) == fetched
    assert {tuple(call.get("allow_patterns", ())) for call in hub.calls if not call["local"]} == {("config.json",)}


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


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlayedRepository:
    """Return a repository of GGUF files: two types, a split one in a folder, a vision part."""
    files = tmp_path / "files"
    files.mkdir()
    write_gguf(files / "Tiny-Q4_K_M.gguf", "llama", lambda _: "Q4_K")
    write_gguf(files / "Tiny-Q8_0.gguf", "qwen2", lambda _: "Q8_0")
    (files / "BF16").mkdir()
    write_gguf(files / "BF16" / "Tiny-BF16.gguf", "qwen3", lambda _: "BF16", num_files=2)
    (files / "mmproj-F16.gguf").write_bytes(b"GGUF")
    (files / "README.md").write_text("")
    (files / "params.json").write_text("{}")
    played = PlayedRepository(files, tmp_path / "snapshot")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", played.snapshot_download)
    monkeypatch.setattr(huggingface_hub, "list_repo_files", played.list_repo_files)
    return played


def model_type(folder: Path) -> str:
    return str(json.loads((folder / "config.json").read_text())["model_type"])


@pytest.mark.parametrize(
    ("name", "hf_file", "kind", "downloads"),
    [
        ("user/tiny", None, "llama", ["params.json", "Tiny-Q4_K_M.gguf"]),
        ("user/tiny:Q8_0", None, "qwen2", ["Tiny-Q8_0.gguf"]),
        ("hf.co/user/tiny:q8_0", None, "qwen2", ["Tiny-Q8_0.gguf"]),
        ("user/tiny:bf16", None, "qwen3", [f"BF16/Tiny-BF16-0000{number}-of-00002.gguf" for number in (1, 2)]),
        ("user/tiny", "Tiny-Q8_0.gguf", "qwen2", ["Tiny-Q8_0.gguf"]),
    ],
)  # fmt: skip
def test_of_a_repository_of_gguf_files_one_is_downloaded_and_only_once(
    repository: PlayedRepository, name: str, hf_file: str | None, kind: str, downloads: list[str]
) -> None:
    folder = resolve_model(name, hf_file=hf_file)
    assert model_type(folder) == kind and repository.downloads == downloads
    repository.is_online = False
    assert resolve_model(name, hf_file=hf_file) == folder and repository.downloads == downloads


def test_what_is_in_the_cache_is_not_the_default_because_of_that(repository: PlayedRepository) -> None:
    resolve_model("user/tiny:Q8_0")
    assert model_type(resolve_model("user/tiny")) == "llama"
    repository.is_online = False
    assert model_type(resolve_model("user/tiny:Q8_0")) == "qwen2"


def test_without_the_hub_the_file_in_the_cache_is_the_model(repository: PlayedRepository) -> None:
    resolve_model("user/tiny:Q8_0")
    repository.is_online = False
    assert model_type(resolve_model("user/tiny")) == "qwen2"


@pytest.mark.parametrize(
    ("name", "hf_file", "message"),
    [
        (
            "user/tiny:Q6_K",
            None,
            "user/tiny has no GGUF file of type Q6_K; it has BF16/Tiny-BF16-00001-of-00002.gguf, ",
        ),
        ("user/tiny", "other.gguf", "user/tiny has no GGUF file other.gguf of a model"),
    ],
)
def test_a_file_that_the_repository_does_not_have_is_named(
    repository: PlayedRepository, name: str, hf_file: str | None, message: str
) -> None:
    with pytest.raises(ModelError, match=re.escape(message)):
        resolve_model(name, hf_file=hf_file)
    assert not [each for each in repository.downloads if each.endswith(".gguf")]


@pytest.mark.parametrize(
    ("name", "hf_file", "message"),
    [
        ("models/none.gguf", None, "there is no file 'models/none.gguf'"),
        ("m/none.gguf:Q8_0", None, "there is no file 'm/none.gguf:Q8_0'"),
        ("user/tiny:Q8_0", "Tiny-Q8_0.gguf", "user/tiny is given with the type Q8_0 and with the file Tiny-Q8_0.gguf"),
        ("user/tiny", "README.md", "user/tiny has no GGUF file README.md of a model"),
        ("user/tiny", "mmproj-F16.gguf", "user/tiny has no GGUF file mmproj-F16.gguf of a model"),
        ("~nobody-of-this-name/model", None, "there is no model folder"),
        ("x" * 5000, None, "there is no model folder"),
    ],
)
def test_names_that_mean_nothing_download_nothing(
    repository: PlayedRepository, name: str, hf_file: str | None, message: str
) -> None:
    with pytest.raises(ModelError) as caught:
        resolve_model(name, hf_file=hf_file)
    assert str(caught.value).startswith(message) and repository.downloads == []


def test_a_file_in_the_cache_is_served_without_the_network_and_a_part_alone_is_not_downloaded(
    repository: PlayedRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert resolve_model("user/tiny:latest") == resolve_model("user/tiny")
    monkeypatch.setattr(huggingface_hub, "list_repo_files", lambda *_, **__: pytest.fail("asked the network"))
    assert model_type(resolve_model("user/tiny")) == "llama"
    monkeypatch.setattr(huggingface_hub, "list_repo_files", repository.list_repo_files)
    (repository.files / "BF16" / "Tiny-BF16-00001-of-00002.gguf").unlink()
    with pytest.raises(ModelError, match="user/tiny has only 1 of the files that belong to BF16/Tiny-BF16-00002-of"):
        resolve_model("user/tiny:bf16")
    assert not [each for each in repository.downloads if "BF16" in each]


def test_a_plan_of_a_repository_without_a_config_reads_the_file(repository: PlayedRepository) -> None:
    assert model_type(resolve_model("user/tiny", config_only=True)) == "llama"


def test_a_folder_with_gguf_files_is_the_default_one_or_that_of_a_type(repository: PlayedRepository) -> None:
    folder = repository.files
    assert model_type(resolve_model(str(folder))) == "llama"
    assert model_type(resolve_model(f"{folder}:Q8_0")) == "qwen2"
    assert model_type(resolve_model(str(folder), hf_file="Tiny-Q8_0.gguf")) == "qwen2"
    with pytest.raises(ModelError, match="has no GGUF file of type Q6_K"):
        resolve_model(f"{folder}:Q6_K")
    with pytest.raises(ModelError, match="there is no file other in"):
        resolve_model(str(folder), hf_file="other")
    with pytest.raises(ModelError, match="is a file, which has no file 'b'"):
        resolve_model(str(folder / "Tiny-Q8_0.gguf"), hf_file="b")
    with pytest.raises(ModelError, match="is a file, which has no revision 'main'"):
        resolve_model(str(folder / "Tiny-Q8_0.gguf"), "main")
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_text("")
    assert resolve_model(str(folder)) == folder, "safetensors come first"


def test_a_tokenizer_is_a_folder_a_file_or_a_hub_id(
    repository: PlayedRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (resolve_tokenizer(str(smollm2_file())) / "tokenizer.json").is_file()
    with pytest.raises(ModelError, match=r"Tiny-Q8_0\.gguf: .*no tokenizer"):
        resolve_tokenizer(str(repository.files / "Tiny-Q8_0.gguf"))
    assert resolve_tokenizer(str(smollm2_file().parent)) == resolve_tokenizer(str(smollm2_file()))
    with pytest.raises(ModelError, match=r"Tiny-Q8_0\.gguf: .*no tokenizer"):
        resolve_tokenizer("hf.co/user/tiny:Q8_0")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"there is no tokenizer\.json in"):
        resolve_tokenizer(str(tmp_path / "own"))
    (tmp_path / "own" / "tokenizer.json").write_text("{}")
    assert resolve_tokenizer(str(tmp_path / "own")) == tmp_path / "own"
    play(monkeypatch, NOT_CACHED, tmp_path / "own")
    assert resolve_tokenizer("user/own") == tmp_path / "own"
    with pytest.raises(ModelError, match=r"there is no tokenizer '\./none', and it is not a hub id"):
        resolve_tokenizer("./none")

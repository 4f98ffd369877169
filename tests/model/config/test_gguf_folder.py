"""gguf_folder: the small files of a model folder from a GGUF file, kept under the user's cache or for this process."""

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.errors import ModelError, UnsupportedModel
from chairlift.model.config import gguf_folder as module
from chairlift.model.config.architectures.config_parsing import read_decoder_config
from chairlift.model.config.gguf_folder import check_tokenizer, gguf_file_of, gguf_folder
from chairlift.text.chat_template_files import read_templates
from support_gguf import smollm2_file
from support_gguf_models import write_gguf


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHAIRLIFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gguf"


def q8_0(_: str) -> str:
    return "Q8_0"


def test_a_file_has_the_files_of_a_folder(cache: Path) -> None:
    folder = gguf_folder(smollm2_file())
    assert folder.parent == cache
    assert {each.name for each in folder.iterdir()} == {
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
        "chairlift_gguf.json",
    }  # fmt: skip
    assert gguf_file_of(folder) == smollm2_file() and gguf_file_of(folder.parent) is None
    assert read_decoder_config(folder).hidden_size == 576
    check_tokenizer(folder)


def test_a_folder_is_made_once_for_a_file_and_again_for_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Path] = []
    read = module.read_gguf
    monkeypatch.setattr(module, "read_gguf", lambda path: reads.append(path) or read(path))
    file = tmp_path / "a.gguf"
    write_gguf(file, "llama", q8_0)
    first = gguf_folder(file)
    monkeypatch.chdir(tmp_path)
    assert gguf_folder(Path("a.gguf")) == first and len(reads) == 1
    os.utime(file, (5, 5))
    assert gguf_folder(file) != first
    shutil.copyfile(file, tmp_path / "b.gguf")
    assert gguf_file_of(gguf_folder(tmp_path / "b.gguf")) == tmp_path / "b.gguf" and len(reads) == 3


def test_any_of_split_files_is_the_same_model(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", "llama", q8_0, num_files=2)
    first, second = (gguf_folder(tmp_path / f"a-0000{number}-of-00002.gguf") for number in (1, 2))
    assert first == second
    (tmp_path / "a-00002-of-00002.gguf").unlink()
    with pytest.raises(ModelError, match=r"a-00002-of-00002\.gguf"):
        gguf_folder(tmp_path / "a-00001-of-00002.gguf")


def test_the_same_folder_may_be_made_several_times_at_once(tmp_path: Path, cache: Path) -> None:
    write_gguf(tmp_path / "a.gguf", "llama", q8_0)
    made: list[Path] = []
    threads = [threading.Thread(target=lambda: made.append(gguf_folder(tmp_path / "a.gguf"))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 1 and list(cache.iterdir()) == [made[0]], "and nothing unfinished is left"


def test_without_a_cache_the_folder_lasts_as_long_as_the_process(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(tmp_path / "a.gguf", "llama", q8_0)
    cache.parent.write_text("a file where the folder should be")
    ended: list[Any] = []
    monkeypatch.setattr(module.atexit, "register", lambda *call, **options: ended.append((call, options)))
    folder = gguf_folder(tmp_path / "a.gguf")
    assert (folder / "config.json").is_file() and not folder.is_relative_to(tmp_path / "cache")
    ((call, options),) = ended
    call[0](*call[1:], **options)
    assert not folder.exists()


@pytest.mark.parametrize("own", ["CHAIRLIFT_CACHE", "XDG_CACHE_HOME", "HOME"])
def test_the_cache_is_where_the_user_wants_it(own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(tmp_path / "a.gguf", "llama", q8_0)
    for name in ("CHAIRLIFT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(own, str(tmp_path / "own"))
    below = {"CHAIRLIFT_CACHE": "gguf", "XDG_CACHE_HOME": "chairlift/gguf", "HOME": ".cache/chairlift/gguf"}[own]
    assert gguf_folder(tmp_path / "a.gguf").parent == tmp_path / "own" / below


def test_a_model_may_lack_a_tokenizer_that_can_be_read(tmp_path: Path) -> None:
    def unknown(writer: Any) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("of tomorrow")
        writer.add_token_types([1] * 304)
        writer.add_token_merges(["a b"])

    write_gguf(tmp_path / "a.gguf", "llama", q8_0, tokens=unknown)
    folder = gguf_folder(tmp_path / "a.gguf")
    assert read_decoder_config(folder).vocab_size == 304 and not (folder / "tokenizer.json").exists()
    with pytest.raises(UnsupportedModel, match=r"a\.gguf: .*of tomorrow.*--tokenizer"):
        check_tokenizer(folder)


def test_a_file_may_have_several_chat_templates(tmp_path: Path) -> None:
    def templates(writer: Any) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_types([2] + [1] * 303)
        writer.add_token_scores([0.0] * 304)
        writer.add_chat_template([
            {"name": "default", "template": "{{ 'plain' }}"}, {"name": "tool_use", "template": "{{ 'tools' }}"},
        ])  # fmt: skip

    write_gguf(tmp_path / "a.gguf", "llama", q8_0, tokens=templates)
    found = read_templates(gguf_folder(tmp_path / "a.gguf"))
    assert found == {"default": "{{ 'plain' }}", "tool_use": "{{ 'tools' }}"}


def test_files_that_are_no_models_and_pointers_that_are_broken_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"a\.gguf"):
        gguf_folder(tmp_path / "a.gguf")
    with pytest.raises(ModelError, match=r"cannot read .*b\.gguf: No such file"):
        gguf_folder(tmp_path / "b.gguf")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "chairlift_gguf.json"])
@pytest.mark.parametrize("damage", ["emptied", "removed"])
def test_a_damaged_folder_is_made_again(name: str, damage: str) -> None:
    folder = gguf_folder(smollm2_file())
    whole = (folder / name).read_bytes()
    if damage == "emptied":
        (folder / name).write_bytes(b"")
    else:
        (folder / name).unlink()
    assert gguf_folder(smollm2_file()) == folder and (folder / name).read_bytes() == whole


def test_a_cache_may_be_reached_by_a_link(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = gguf_folder(smollm2_file())
    (tmp_path / "link").symlink_to(cache.parent)
    monkeypatch.setenv("CHAIRLIFT_CACHE", str(tmp_path / "link"))
    monkeypatch.setattr(module, "read_gguf", lambda _: pytest.fail("made again"))
    linked = gguf_folder(smollm2_file())
    assert linked.resolve() == folder and gguf_file_of(linked) == gguf_file_of(folder) == smollm2_file()


def test_what_a_killed_process_has_left_is_removed_a_day_later(cache: Path) -> None:
    for name in (".unfinished-old", ".unfinished-new"):
        (cache / name).mkdir(parents=True)
    os.utime(cache / ".unfinished-old", (5, 5))
    folder = gguf_folder(smollm2_file())
    assert {each.name for each in cache.iterdir()} == {folder.name, ".unfinished-new"}


def test_another_version_of_the_code_makes_another_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    first = gguf_folder(smollm2_file())
    monkeypatch.setattr(module, "_code", lambda: b"another")
    assert gguf_folder(smollm2_file()) != first


@pytest.mark.parametrize("pointer", [5, {"file": 5}, {"file": "/other.gguf"}, {"file": "/other.gguf", "folder": "/x"}])
def test_a_folder_from_elsewhere_names_no_file(pointer: object, tmp_path: Path) -> None:
    (tmp_path / "chairlift_gguf.json").write_text(json.dumps(pointer))
    assert gguf_file_of(tmp_path) is None
    copy = shutil.copytree(gguf_folder(smollm2_file()), tmp_path / "copy")
    assert gguf_file_of(copy) is None


def test_names_of_any_bytes_and_settings_that_say_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = Path(os.fsdecode(bytes(tmp_path) + b"/\xff.gguf"))
    write_gguf(tmp_path / "a.gguf", "llama", q8_0)
    (tmp_path / "a.gguf").rename(odd)
    assert gguf_file_of(gguf_folder(odd)) == odd
    monkeypatch.setenv("CHAIRLIFT_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert gguf_folder(odd).parent == tmp_path / "home/.cache/chairlift/gguf"


def test_without_its_tokenizer_a_file_still_has_its_templates_and_ends(tmp_path: Path) -> None:
    def unknown(writer: Any) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("of tomorrow")
        writer.add_token_types([1] * 304)
        writer.add_chat_template("{{ 'plain' }}")
        writer.add_float32("general.sampling.temp", 0.25)

    write_gguf(tmp_path / "a.gguf", "llama", q8_0, tokens=unknown)
    folder = gguf_folder(tmp_path / "a.gguf")
    assert read_templates(folder) == {"default": "{{ 'plain' }}"} and not (folder / "tokenizer.json").exists()
    fields = json.loads((folder / "generation_config.json").read_text())
    assert fields["temperature"] == 0.25 and 2 in fields["eos_token_id"]

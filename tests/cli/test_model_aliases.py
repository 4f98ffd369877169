"""model_aliases: what a model may be called by the path or id that it was started with."""

from pathlib import Path

import pytest

from chairlift.cli.model_aliases import model_aliases


def test_an_id_or_built_in_name_is_itself() -> None:
    assert model_aliases("org/name") == ("org/name",)
    assert model_aliases("chairlift:demo") == ("chairlift:demo",)


@pytest.mark.parametrize("name", ["~no-such-user/x", "n" * 300, "a\0b", "~no-such-user"])
def test_what_is_no_path_is_itself(name: str) -> None:
    assert model_aliases(name) == (name,)


@pytest.mark.parametrize("given", ["models/SmolLM2", "./models/SmolLM2", "models/SmolLM2/", "{root}/models/SmolLM2"])
def test_a_folder_has_all_forms_of_its_path(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models" / "SmolLM2").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    given = given.format(root=tmp_path)
    aliases = model_aliases(given)
    assert aliases[0] == given and len(set(aliases)) == len(aliases)
    assert {given, given.rstrip("/"), str(tmp_path / "models" / "SmolLM2"), "SmolLM2"} <= {*aliases}
    if not given.startswith("/"):
        assert {"models/SmolLM2", "./models/SmolLM2"} <= {*aliases}


def test_a_link_and_a_home_folder_count_by_both_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "snapshot-1").mkdir()
    (tmp_path / "current").symlink_to("snapshot-1")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert set(model_aliases("~/current")) == {
        "~/current", str(tmp_path / "current"), str(tmp_path / "snapshot-1"), "current", "snapshot-1"
    }  # fmt: skip


def test_the_folder_that_is_served_from_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert {".", str(tmp_path), tmp_path.name} <= set(model_aliases("."))

"""python -m page_libraries: what is wrong with its arguments; the other tests here write files by it."""

from pathlib import Path

import pytest

from page_libraries.__main__ import main


@pytest.mark.parametrize("words", [[], ["fonts", "source", "made"], ["math-font", "source"]])
def test_arguments_that_are_missing_or_wrong_show_the_usage(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2 and "usage: page_libraries" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def test_a_folder_without_maps_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["character-maps", str(tmp_path), str(tmp_path / "made")]) == 1
    assert "has no files *.bcmap" in capsys.readouterr().err
    assert main(["character-maps", str(tmp_path), str(tmp_path / "missing" / "made")]) == 1
    assert not (tmp_path / "made").exists()

"""python -m page_libraries: a kind of file that does not exist; the other tests here write files by it."""

from pathlib import Path

import pytest

from page_libraries.__main__ import main


def test_a_kind_that_does_not_exist_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("fonts", tmp_path, tmp_path / "made") == 2
    assert capsys.readouterr().err == "fonts is neither character-maps nor math-font\n"
    assert not (tmp_path / "made").exists()

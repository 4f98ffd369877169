"""fetch_source(): an archive is unpacked once, must have tests, and cannot write outside of its folder."""

import io
import tarfile
from pathlib import Path

import pytest

from external_suites import fetch_sdist
from external_suites.fetch_sdist import download, fetch_source, unpack


def make_archive(path: Path, *names: str) -> Path:
    with tarfile.open(path, "w:gz") as opened:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size = 1
            opened.addfile(entry, io.BytesIO(b"x"))
    return path


def no_pip(*words: object) -> None:
    raise AssertionError("nothing has to be downloaded")


def test_what_is_there_is_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sdist, "download", no_pip)
    archive = make_archive(tmp_path / "thing-1.0.tar.gz", "thing-1.0/tests/test_a.py")
    source = fetch_source("thing", "1.0", tmp_path)
    assert (source / "tests" / "test_a.py").read_text() == "x"
    archive.unlink()
    assert fetch_source("thing", "1.0", tmp_path) == source


def test_what_is_not_there_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pip(name: str, version: str, folder: Path) -> None:
        make_archive(folder / f"{name}-{version}.tar.gz", f"{name}-{version}/tests/test_a.py")

    monkeypatch.setattr(fetch_sdist, "download", pip)
    assert (fetch_source("thing", "2.0", tmp_path) / "tests" / "test_a.py").is_file()


def test_sources_without_tests_are_of_no_use(tmp_path: Path) -> None:
    make_archive(tmp_path / "thing-1.0.tar.gz", "thing-1.0/src/thing.py")
    with pytest.raises(RuntimeError, match=r"of thing 1\.0 has no tests"):
        fetch_source("thing", "1.0", tmp_path)


def test_the_tests_may_be_in_another_folder(tmp_path: Path) -> None:
    make_archive(tmp_path / "thing-1.0.tar.gz", "thing-1.0/json/tests/a.json")
    assert (fetch_source("thing", "1.0", tmp_path, "json/tests") / "json" / "tests" / "a.json").is_file()


def test_an_archive_writes_nowhere_else(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    with pytest.raises(RuntimeError, match="is not below its folder"):
        unpack(make_archive(tmp_path / "bad.tar.gz", "../outside"), inside)
    assert not (tmp_path / "outside").exists()


@pytest.mark.full
def test_what_pip_cannot_get_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(RuntimeError, match=r"could not download the source distribution of no-such-thing 1\.0"):
        download("no-such-thing", "1.0", tmp_path)

"""static_files: the page's files, their sizes, and the vendored libraries with their versions and licenses."""

import gzip
import hashlib
import re
from pathlib import Path

import pytest

from chairlift.ui.static_files import CONTENT_TYPES, STATIC, static_files

MAX_COMPRESSED_BYTES = 250_000
MAX_LATER_BYTES = {"temml": 60_000, "chairlift-math": 125_000, "pdfjs-cmaps": 500_000, "pdfjs": 550_000}
"""What is loaded with the first formula, Asian font of a PDF, and PDF, and the size of each, compressed."""
MAX_FILE_LINES = 400
VENDOR = STATIC / "vendor"
OWN_FILES = [file.file for file in static_files() if not file.file.is_relative_to(VENDOR)]
IMPORT = re.compile(r"""(?:\bfrom\s*|\bimport\s*\(?\s*)["']([\w./-]+)["']""")
LINK = re.compile(r"""(?:src|href)=["']([^"']+)["']""")


def test_the_page_has_at_most_250_kb_compressed_and_libraries_that_are_loaded_when_they_are_needed() -> None:
    sizes = {file.path: len(file.load().compressed) for file in static_files()}
    for library, most in MAX_LATER_BYTES.items():
        later = [sizes.pop(path) for path in list(sizes) if path.startswith(f"/ui/vendor/{library}-")]
        assert 20_000 < sum(later) <= most, library
    assert 20_000 < sum(sizes.values()) <= MAX_COMPRESSED_BYTES, sizes
    texts = {file.name: file.read_text(encoding="utf-8") for file in OWN_FILES}
    assert [name for name, text in texts.items() if re.search(r"(?m)^import.*(?:temml|pdfjs)-", text)] == []


def test_the_files_are_served_below_ui_and_the_page_itself_at_the_root() -> None:
    paths = [file.path for file in static_files()]
    assert paths.count("/") == 1
    assert [path for path in paths if not re.fullmatch(r"/|/ui/[a-z0-9_./A-Z-]+", path)] == []
    assert len(set(paths)) == len(paths)


def test_every_file_in_the_folder_is_served() -> None:
    left_out = [file for file in STATIC.rglob("*") if file.is_file() and file.suffix not in CONTENT_TYPES]
    assert left_out == []


def test_content_is_read_once_and_compressed_by_gzip() -> None:
    file = next(file for file in static_files() if file.path == "/")
    content = file.load()
    assert file.load() is content
    assert gzip.decompress(content.compressed) == content.plain == (STATIC / "index.html").read_bytes()
    assert hashlib.sha256(content.plain).hexdigest().startswith(content.digest)


def test_the_page_names_the_service_behind_it() -> None:
    digests = set()
    for service in ("", "server", "router"):
        content = next(file for file in static_files(service) if file.path == "/").load()
        assert f'<html lang="en" data-service="{service}">'.encode() in content.plain
        digests.add(content.digest)
    assert len(digests) == 3, "a browser does not keep the page of another service"


def test_files_of_another_folder(tmp_path: Path) -> None:
    for name in ("index.html", "a.js", "b/c-1.2.3.min.js", "d.py", "e.map"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    files = static_files(folder=tmp_path)
    found = {file.path: (file.content_type.partition(";")[0], file.is_immutable) for file in files}
    assert found == {
        "/": ("text/html", False), "/ui/a.js": ("text/javascript", False),
        "/ui/b/c-1.2.3.min.js": ("text/javascript", True),
    }  # fmt: skip


def test_every_import_and_link_is_a_file_of_the_page() -> None:
    """Without a build step a misspelled import would be found only by the browser."""
    missing = []
    for file in static_files():
        text = file.load().plain.decode(errors="replace")
        if file.file.suffix == ".js":
            targets = [file.file.parent / name for name in IMPORT.findall(text) if name.startswith(".")]
            targets += [Path("/") / name for name in IMPORT.findall(text) if not name.startswith(".")]
        elif file.file.suffix == ".html":
            targets = [STATIC / name.removeprefix("ui/") for name in LINK.findall(text)]
        else:
            continue
        missing += [f"{file.path}: {target.name}" for target in targets if not target.resolve().is_file()]
    assert missing == []


def test_the_page_has_no_inline_script_or_style_and_no_foreign_address() -> None:
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", page) == []
    for file in OWN_FILES:
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/", "")
        assert re.findall(r"https?://[\w.]+|\beval\(|new Function", text) == [], file.name


def test_no_script_is_longer_than_400_lines_of_120_characters() -> None:
    for file in (file for file in OWN_FILES if file.suffix != ".css"):
        lines = file.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= MAX_FILE_LINES, file.name
        assert [line for line in lines if len(line) > 120] == [], file.name


def versions() -> list[list[str]]:
    """Return the lines of VERSIONS.txt: library, version, license, file, bytes, SHA-256."""
    text = (VENDOR / "VERSIONS.txt").read_text(encoding="utf-8")
    return [line.split() for line in text.splitlines() if line and not line.startswith("#")]


def test_each_vendored_file_has_its_version_size_and_hash() -> None:
    listed = {line[3]: line for line in versions()}
    others = {"VERSIONS.txt", *(f"LICENSE-{line[0]}.txt" for line in versions())}
    assert {file.name for file in VENDOR.iterdir()} == listed.keys() | others
    for name, (_, version, _, _, size, digest) in listed.items():
        content = (VENDOR / name).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (int(size), digest), name
        assert f"-{version}." in name


@pytest.mark.parametrize("library", sorted({line[0] for line in versions()} if VENDOR.exists() else ()))
def test_each_library_has_its_license(library: str) -> None:
    text = (VENDOR / f"LICENSE-{library}.txt").read_text(encoding="utf-8")
    permissions = ("Permission is hereby granted", "Apache License", "Redistribution and use in source and binary",
                   "LaTeX Project Public License")  # fmt: skip
    assert any(permission in text for permission in permissions)

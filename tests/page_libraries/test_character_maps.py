"""character_maps_zip: the archive of the web page is what the tool makes, without the maps that no PDF names."""

import zipfile
from pathlib import Path

from chairlift.ui.static_files import STATIC
from page_libraries.__main__ import main

(ARCHIVE,) = STATIC.glob("vendor/pdfjs-cmaps-*.zip")


def test_the_archive_of_the_page_is_made_of_its_maps_and_has_those_that_pdf_names(tmp_path: Path) -> None:
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(tmp_path)
    (tmp_path / "UniJIS-UTF8-H.bcmap").write_bytes(b"left out")
    assert main(["character-maps", str(tmp_path), str(tmp_path / "made.zip")]) == 0
    assert (tmp_path / "made.zip").read_bytes() == ARCHIVE.read_bytes()
    names = {file.stem for file in tmp_path.glob("*.bcmap")}
    encodings = {"90ms-RKSJ", "UniJIS-UTF16", "GBK-EUC", "GBK2K", "UniGB-UCS2", "KSCms-UHC", "UniKS-UTF16", "HKscs-B5",
                "ETen-B5", "UniCNS-UTF16"}  # fmt: skip
    expected = {f"{each}-{direction}" for each in encodings for direction in "HV"}
    expected |= {f"Adobe-{each}-UCS2" for each in ("Japan1", "GB1", "CNS1", "Korea1")}
    assert expected <= names

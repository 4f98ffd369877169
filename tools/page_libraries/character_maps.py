"""character_maps_zip: packs the predefined character maps (CMaps) of pdfjs-dist for the web page."""

import io
import re
import zipfile
from pathlib import Path

LEFT_OUT = re.compile(r"-UTF(8|32)-")
"""Matches the names of maps that are not among the predefined CMaps of ISO 32000; they are half of the size."""

OLDEST_TIME = (1980, 1, 1, 0, 0, 0)
"""The time of each entry, so that the same maps give the same archive."""

UNIX_SYSTEM = 3
"""The system that each entry names as its creator; without it the archive depends on the machine."""


def character_maps_zip(folder: Path) -> bytes:
    """Return a zip archive of the maps in the folder `cmaps` of pdfjs-dist.

    The entries are not compressed: the server compresses the archive as a whole, which is 15 % smaller.
    Raises ValueError if the folder has no maps.
    """
    files = [file for file in sorted(folder.glob("*.bcmap")) if not LEFT_OUT.search(file.name)]
    if not files:
        raise ValueError(f"{folder} has no files *.bcmap: it must be the folder cmaps of the npm package pdfjs-dist")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as writer:
        for file in files:
            entry = zipfile.ZipInfo(file.name, OLDEST_TIME)
            entry.create_system = UNIX_SYSTEM
            writer.writestr(entry, file.read_bytes())
    return archive.getvalue()

"""StaticFile: one file of the web page, with what an HTTP response says about it."""

import gzip
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

STATIC = Path(__file__).parent / "static"
INDEX = "index.html"
PREFIX = "/ui/"
"""What the path of every file but INDEX begins with; INDEX has the path /."""

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml", ".txt": "text/plain; charset=utf-8", ".zip": "application/zip",
    ".woff2": "font/woff2",
}  # fmt: skip
"""Suffix -> content type; files with other suffixes are not served."""

NO_SERVICE = b'data-service=""'
"""Where INDEX names the service, whose views the page shows."""

ETAG_CHARS = 20
COMPRESSION_LEVEL = 9
_VERSION_IN_NAME = re.compile(r"-\d+\.\d+\.\d+\.")


@dataclass(frozen=True, slots=True)
class StaticContent:
    """The bytes of a file.

    Attributes:
        plain: the file.
        compressed: the file, compressed by gzip.
        digest: the start of the file's SHA-256 in hex, from which its ETags are made.
    """

    plain: bytes
    compressed: bytes
    digest: str


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file of the page.

    Attributes:
        path: path of its URL.
        file: where it is.
        content_type: value of the header Content-Type.
        is_immutable: its name has a version, so its content never changes.
        service: what INDEX says about the service behind it, "" in other files.
    """

    path: str
    file: Path
    content_type: str
    is_immutable: bool
    service: str = ""

    def load(self) -> StaticContent:
        """Return the content, which is read and compressed once. Raises OSError."""
        return _load(self.file, self.service)


@cache
def _load(file: Path, service: str) -> StaticContent:
    plain = file.read_bytes().replace(NO_SERVICE, NO_SERVICE.replace(b'""', f'"{service}"'.encode()))
    compressed = gzip.compress(plain, COMPRESSION_LEVEL, mtime=0)
    return StaticContent(plain, compressed, hashlib.sha256(plain).hexdigest()[:ETAG_CHARS])


@cache
def static_files(service: str = "", folder: Path = STATIC) -> tuple[StaticFile, ...]:
    """Return every file of the page of a service, `server` or `router`, in the order of their paths."""
    files = sorted(file for file in folder.rglob("*") if file.suffix in CONTENT_TYPES and file.is_file())
    return tuple(
        StaticFile(
            path="/" if (name := file.relative_to(folder).as_posix()) == INDEX else PREFIX + name,
            file=file, content_type=CONTENT_TYPES[file.suffix],
            is_immutable=_VERSION_IN_NAME.search(file.name) is not None,
            service=service if name == INDEX else "",
        )
        for file in files
    )  # fmt: skip

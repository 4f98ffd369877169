"""write_archive: writes what was read and found of a live server to one tar.gz file, without keys.

FOLDER/manifest.json      versions, and each part with its status or its error
FOLDER/doctor.json        what is wrong
FOLDER/server/...         debug.json, metrics.txt, load.json, health answers of the server
FOLDER/replicas/HOST_PORT/...   the same of each replica behind a router
"""

import io
import json
import os
import platform
import re
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from chairlift import __version__
from chairlift.cli.diagnosis.diagnosis import Diagnosis
from chairlift.cli.diagnosis.server_reader import Keys
from chairlift.cli.diagnosis.server_snapshot import Part, ServerSnapshot
from chairlift.core.errors import ConfigError
from chairlift.core.file_writes import naming_file

HIDDEN = b"***"
MIN_KEY_CHARS = 4
"""A shorter key would hide parts of ordinary words."""


def write_archive(diagnosis: Diagnosis, path: Path, keys: Sequence[Keys], *, may_replace: bool = False) -> None:
    """Write the archive, readable by its owner alone, as a whole or not at all.

    Raises FileNotWritten and ConfigError.

    A file that exists is replaced only if it `may_replace` one.

    The servers send no secrets; should one send a key that it got from here, that is replaced.
    """
    secrets = {key.encode() for each in keys for key in (each.api, each.admin) if len(key) >= MIN_KEY_CHARS}
    folder, now = path.name.partition(".")[0] or "chairlift-debug", time.time()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in _files(diagnosis, now):
            shown = _without(secrets, content)
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mtime, entry.mode = len(shown), int(now), 0o600
            archive.addfile(entry, io.BytesIO(shown))
    with naming_file(path):
        number, partial = tempfile.mkstemp(prefix=path.name, suffix=".part", dir=path.parent)  # of its owner alone
        try:
            with open(number, "wb") as file:
                file.write(buffer.getvalue())
            check_output(path, may_replace=may_replace)  # another process may have written it
            Path(partial).replace(path)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise


def check_output(path: Path, *, may_replace: bool) -> None:
    """Raise ConfigError where an archive may not be written."""
    if not may_replace and os.path.lexists(path):
        raise ConfigError(f"{path} exists; --force replaces it", option="output")


def _without(secrets: Iterable[bytes], content: bytes) -> bytes:
    for secret in sorted(secrets, key=len, reverse=True):  # one key may begin with another
        content = content.replace(secret, HIDDEN)
    return content


def default_name(url: str) -> str:
    """Return the name of an archive about a server: chairlift-debug-HOST-PORT-TIME.tar.gz."""
    return f"chairlift-debug-{_address(url, '-')}-{time.strftime('%Y%m%dT%H%M%S')}.tar.gz"


def _files(diagnosis: Diagnosis, now: float) -> Iterator[tuple[str, bytes]]:
    first, *replicas = diagnosis.snapshots
    names = {"server": first}
    for each in replicas:
        name = f"replicas/{_address(each.url, '_')}"
        names[name if name not in names else f"{name}_{len(names)}"] = each
    yield "manifest.json", _json({
        "chairlift": __version__, "python": platform.python_version(), "platform": platform.platform(),
        "time": round(now, 3), "url": diagnosis.url,
        "servers": {name: {"url": each.url, "parts": _part_facts(each)} for name, each in names.items()},
    })  # fmt: skip
    yield "doctor.json", _json(diagnosis.as_json())
    for folder, snapshot in names.items():
        for name, part in snapshot.parts.items():
            yield f"{folder}/{name}.{'txt' if name == 'metrics' else 'json'}", _content(part)


def _part_facts(snapshot: ServerSnapshot) -> dict[str, Any]:
    return {
        name: {"path": part.path, "status": part.status, "error": part.error, "seconds": round(part.seconds, 3)}
        for name, part in snapshot.parts.items()
    }


def _content(part: Part) -> bytes:
    return part.body if part.status else _json({"error": part.error})


def _json(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return text.encode(errors="backslashreplace")  # half a surrogate pair, which no UTF-8 has, becomes JSON's escape


def _address(url: str, separator: str) -> str:
    parts = urlsplit(url)
    host = re.sub(r"[^A-Za-z0-9.-]", separator, parts.hostname or "server").strip(".") or "server"
    try:
        port = parts.port
    except ValueError:
        port = None
    return host if port is None else f"{host}{separator}{port}"

"""read_objects: reads the file of a trace, one JSON object per line, with errors that name file and line."""

import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from chairlift.core.errors import InvalidRequest


def read_lines(path: Path) -> Iterable[str]:
    """Return the lines of a text file in UTF-8 with their ends. Raises InvalidRequest where it cannot be read."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return io.StringIO(file.read(), newline="")
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from None


def read_objects(path: Path, shape: str = "an object") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the object of each line that is not blank, behind its place: "trace.jsonl line 17".

    `shape` says in an error what a line must be. Raises InvalidRequest that names the file, and the line where one is
    not JSON or no object.
    """
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            where = f"{path} line {number}"
            yield where, _parse_object(line, where, shape)


def _parse_object(line: str, where: str, shape: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{where}: is not JSON: {error}") from None
    if not isinstance(entry, dict):
        raise InvalidRequest(f"{where}: must be {shape}")
    return entry

"""BatchLine and read_batch: the requests of a batch file, one JSON object a line, checked before any of them runs.

{"custom_id": "one", "method": "POST", "url": "/v1/chat/completions", "body": {"model": ...}}
"""

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from chairlift.core.errors import InvalidRequest
from chairlift.protocol.json_without_spare_memory import compact_json

MAX_CUSTOM_ID_CHARS = 512
MAX_REPORTED = 5
"""Invalid lines that one error names."""


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request of a batch file.

    Attributes:
        number: number of the line, from 1.
        custom_id: the client's name of the request, unique in its file.
        path: route of the API.
        body: the JSON object that is sent, as bytes.
    """

    number: int
    custom_id: str
    path: str
    body: bytes


def read_batch(path: Path, paths: Iterable[str]) -> list[BatchLine]:
    """Read a batch file, whose requests may go to `paths`; empty lines are left out.

    Raises InvalidRequest that names the invalid lines, and OSError for a file that cannot be read.
    """
    known = frozenset(paths)
    lines: list[BatchLine] = []
    problems: list[str] = []
    numbers: dict[str, int] = {}
    for number, text in _numbered(path):
        try:
            line = _parse(number, text, known)
        except InvalidRequest as error:
            problems.append(f"line {number}: {error.message}")
            continue
        if (first := numbers.setdefault(line.custom_id, number)) != number:
            problems.append(f"line {number}: custom_id {line.custom_id[:40]!r} is that of line {first}, too")
            continue
        lines.append(line)
    if problems:
        more = f"; and {len(problems) - MAX_REPORTED} more" if len(problems) > MAX_REPORTED else ""
        raise InvalidRequest(f"{path}: {'; '.join(problems[:MAX_REPORTED])}{more}", param="input")
    if not lines:
        raise InvalidRequest(f"{path} has no requests", param="input")
    return lines


def _numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            if text.strip():
                yield number, text


def _parse(number: int, text: bytes, known: frozenset[str]) -> BatchLine:
    try:
        entry = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"it is no JSON: {error}") from None
    if not isinstance(entry, dict):
        raise InvalidRequest(f"it must be an object, got {type(entry).__name__}")
    custom_id, body, path = entry.get("custom_id"), entry.get("body"), entry.get("url")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID_CHARS:
        raise InvalidRequest(f"custom_id must be a text of 1 to {MAX_CUSTOM_ID_CHARS} characters")
    if entry.get("method", "POST") != "POST":
        raise InvalidRequest(f"method must be POST, got {str(entry['method'])[:40]!r}")
    if not isinstance(path, str) or path not in known:
        raise InvalidRequest(f"url must be one of {', '.join(sorted(known))}, got {str(path)[:60]!r}")
    if not isinstance(body, dict):
        raise InvalidRequest(f"body must be an object, got {type(body).__name__}")
    if body.get("stream"):
        raise InvalidRequest("body.stream must be false: a batch file has whole responses")
    return BatchLine(number, custom_id, path, compact_json(body))

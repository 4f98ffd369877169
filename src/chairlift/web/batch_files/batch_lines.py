"""BatchFile and read_batch: the requests of a batch file, one JSON object a line, checked before any of them runs.

{"custom_id": "one", "method": "POST", "url": "/v1/chat/completions", "body": {"model": ...}}
"""

import codecs
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson

from chairlift.core.errors import InvalidRequest
from chairlift.protocol.json_without_spare_memory import compact_json
from chairlift.web.batch_files.custom_id_set import custom_id_digest

MAX_CUSTOM_ID_CHARS = 512
MAX_REPORTED = 5
"""Invalid lines that one error names."""

MAX_KEPT_PROBLEMS = 100
"""Invalid lines that a check of a file describes; the others are counted."""

MAX_MODEL_CHARS = 1000
"""Longest name of a model in a file whose number of models is limited."""


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request of a batch file.

    Attributes:
        number: number of the line, from 1.
        custom_id: the client's name of the request, unique in its file.
        path: route of the API.
        body: the JSON object that is sent, as bytes.
        model: the model that the body names; "" where it names none.
    """

    number: int
    custom_id: str
    path: str
    body: bytes
    model: str = ""


@dataclass(frozen=True, slots=True)
class LineProblem:
    """Why a line of a batch file is no request.

    Attributes:
        number: number of the line, from 1.
        message: what is wrong.
    """

    number: int
    message: str


@dataclass(frozen=True, slots=True)
class BatchCheck:
    """What a check of a batch file has found.

    Attributes:
        num_requests: number of the valid requests.
        problems: the first invalid lines, at most MAX_KEPT_PROBLEMS.
        num_problems: number of all invalid lines.
        models: each model that the valid requests name, "" for none -> number of the first line that names it.
    """

    num_requests: int
    problems: tuple[LineProblem, ...]
    num_problems: int
    models: Mapping[str, int]


class BatchFile:
    """A batch file that is read line by line, so that its size does not matter; empty lines are left out."""

    def __init__(self, path: Path, paths: Iterable[str], max_line_bytes: int | None = None) -> None:
        """Describe a file, whose requests may go to `paths`; a longer line than `max_line_bytes` is invalid."""
        self._path, self._paths, self._max_line_bytes = path, frozenset(paths), max_line_bytes

    def check(
        self, max_requests: int | None = None, max_models: int | None = None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> BatchCheck:  # fmt: skip
        """Check every line.

        Args:
            max_requests: the check ends at the request behind so many, or at as many invalid lines; None for no limit.
            max_models: different models that the requests may name; None for no limit.
            is_stopped: called for each line; once it returns True the check ends, and its result is of no use.

        Raises OSError for a file that cannot be read.
        """
        numbers: dict[bytes, int] = {}  # digest of a name -> its line
        models: dict[str, int] = {}
        problems: list[LineProblem] = []
        num_problems = 0
        for number, text in self._numbered():
            if is_stopped():
                break
            problem = self._problem(number, text, numbers, models, max_models)
            if problem is not None:
                num_problems += 1
                if len(problems) < MAX_KEPT_PROBLEMS:
                    problems.append(problem)
            if max_requests is not None and max(len(numbers), num_problems) > max_requests:
                break
        return BatchCheck(len(numbers), tuple(problems), num_problems, models)

    def __iter__(self) -> Iterator[BatchLine]:
        """Yield the requests of a file; lines that are none are left out. Raises OSError.

        A name that comes twice is not noticed: see check().
        """
        for number, text in self._numbered():
            if isinstance(line := self._parse(number, text), BatchLine):
                yield line

    def _problem(
        self, number: int, text: bytes | None, numbers: dict[bytes, int], models: dict[str, int],
        max_models: int | None,
    ) -> LineProblem | None:  # fmt: skip
        """Return why a line is no request, and note its name and its model if it is one."""
        line = self._parse(number, text)
        if isinstance(line, LineProblem):
            return line
        if max_models is not None and len(line.model) > MAX_MODEL_CHARS:
            return LineProblem(
                number, f"body.model has {len(line.model)} characters, the limit is {MAX_MODEL_CHARS}"
            )  # fmt: skip
        if line.model not in models and len(models) == max_models:
            return LineProblem(number, f"body.model is another one than the first {max_models}, which is the limit")
        if (first := numbers.setdefault(custom_id_digest(line.custom_id), number)) != number:
            return LineProblem(number, f"custom_id {line.custom_id[:40]!r} is that of line {first}, too")
        models.setdefault(line.model, number)
        return None

    def _parse(self, number: int, text: bytes | None) -> BatchLine | LineProblem:
        if text is None:
            return LineProblem(number, f"it has more than {self._max_line_bytes} bytes, which is the limit of a body")
        try:
            return _parse(number, text, self._paths)
        except InvalidRequest as error:
            return LineProblem(number, error.message)

    def _numbered(self) -> Iterator[tuple[int, bytes | None]]:
        """Yield the lines that are not empty, None for one that is too long."""
        limit = -1 if self._max_line_bytes is None else self._max_line_bytes + len(codecs.BOM_UTF8) + len(b"\r\n")
        with self._path.open("rb") as file:
            number, is_rest = 0, False
            while piece := file.readline(limit):
                is_end = piece.endswith(b"\n")
                is_too_long = 0 <= limit <= len(piece) and not is_end
                if not is_rest:
                    number += 1
                    text = piece.removeprefix(codecs.BOM_UTF8) if number == 1 else piece
                    if is_too_long:
                        yield number, None
                    elif text.strip():
                        yield number, text
                is_rest = not is_end


def read_batch(path: Path, paths: Iterable[str]) -> list[BatchLine]:
    """Read a batch file, whose requests may go to `paths`; empty lines are left out.

    Raises InvalidRequest that names the invalid lines, and OSError for a file that cannot be read.
    """
    file = BatchFile(path, paths)
    check = file.check()
    if check.problems:
        shown = "; ".join(f"line {each.number}: {each.message}" for each in check.problems[:MAX_REPORTED])
        more = f"; and {check.num_problems - MAX_REPORTED} more" if check.num_problems > MAX_REPORTED else ""
        raise InvalidRequest(f"{path}: {shown}{more}", param="input")
    if not check.num_requests:
        raise InvalidRequest(f"{path} has no requests", param="input")
    return list(file)


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
    model = body.get("model")
    try:
        content = compact_json(body)
    except orjson.JSONEncodeError:
        raise InvalidRequest("body is nested too deeply") from None
    return BatchLine(number, custom_id, path, content, model if isinstance(model, str) else "")

"""BatchFile and read_batch: the requests of a batch file, one JSON object a line, checked before any of them runs.

{"custom_id": "one", "method": "POST", "url": "/v1/chat/completions", "body": {"model": ...}}
"""

import codecs
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BufferedReader, FileIO
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

MAX_MODEL_NAMES_BYTES = 65_536
"""UTF-8 bytes of all names of models in such a file, together: they are kept while the batch runs."""

MAX_LINES_PER_REQUEST = 4
"""Lines of a file whose number of requests is limited, empty ones included, at most, for each request of the limit."""

BUFFER_BYTES = 16_384
"""Bytes that are read at once; empty lines in them are skipped together."""

IsStopped = Callable[[], bool]
"""Returns whether what reads a file is to end before its end. Any thread may call it."""


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


@dataclass(slots=True)
class _Noted:
    """What a check keeps of the requests.

    Attributes:
        numbers: digest of a request's name -> its line.
        models: as of BatchCheck.
        models_bytes: UTF-8 bytes of the models' names.
    """

    numbers: dict[bytes, int] = field(default_factory=dict)
    models: dict[str, int] = field(default_factory=dict)
    models_bytes: int = 0


@dataclass(frozen=True, slots=True)
class BatchCheck:
    """What a check of a batch file has found.

    Attributes:
        num_requests: number of the valid requests.
        problems: the first invalid lines, at most MAX_KEPT_PROBLEMS.
        num_problems: number of all invalid lines.
        has_too_many_lines: whether the check has ended since the file has too many lines for its requests.
        models: each model that the valid requests name, "" for none -> number of the first line that names it.
    """

    num_requests: int
    problems: tuple[LineProblem, ...]
    num_problems: int
    has_too_many_lines: bool
    models: Mapping[str, int]


class BatchFile:
    """A batch file that is read line by line, so that its size does not matter; empty lines are left out."""

    def __init__(self, path: Path, paths: Iterable[str], max_line_bytes: int | None = None) -> None:
        """Describe a file, whose requests may go to `paths`; a longer line than `max_line_bytes` is invalid."""
        self._path, self._paths, self._max_line_bytes = path, frozenset(paths), max_line_bytes

    def check(
        self, max_requests: int | None = None, max_models: int | None = None,
        is_stopped: IsStopped = lambda: False,
    ) -> BatchCheck:  # fmt: skip
        """Check every line.

        Args:
            max_requests: the check ends at the request behind so many, at as many invalid lines, or behind
                MAX_LINES_PER_REQUEST times as many lines; None for no limit.
            max_models: different models that the requests may name; None for no limit.
            is_stopped: called again and again; once it returns True the check ends, and its result is of no use.

        Raises OSError for a file that cannot be read.
        """
        noted = _Noted()
        problems: list[LineProblem] = []
        num_problems = 0
        max_lines = None if max_requests is None else MAX_LINES_PER_REQUEST * max_requests
        has_too_many_lines = False
        for number, text in self._numbered(is_stopped):
            if has_too_many_lines := max_lines is not None and number > max_lines:
                break
            if text == b"":
                continue
            problem = self._problem(number, text, noted, max_models)
            if problem is not None:
                num_problems += 1
                if len(problems) < MAX_KEPT_PROBLEMS:
                    problems.append(problem)
            if max_requests is not None and max(len(noted.numbers), num_problems) > max_requests:
                break
        return BatchCheck(len(noted.numbers), tuple(problems), num_problems, has_too_many_lines, noted.models)

    def lines(
        self, max_requests: int | None = None, is_stopped: IsStopped = lambda: False
    ) -> Iterator[BatchLine]:  # fmt: skip
        """Yield the requests of a file; lines that are none are left out. Raises OSError.

        A name that comes twice is not noticed, and the limits are those of check(), to which the arguments belong.
        """
        num_requests = 0
        for number, text in self._numbered(is_stopped):
            if max_requests is not None and number > MAX_LINES_PER_REQUEST * max_requests:
                return
            if text != b"" and isinstance(line := self._parse(number, text), BatchLine):
                if num_requests == max_requests:
                    return
                num_requests += 1
                yield line

    def __iter__(self) -> Iterator[BatchLine]:
        """Yield the requests of a file without a limit: see lines()."""
        return self.lines()

    def _problem(
        self, number: int, text: bytes | None, noted: _Noted, max_models: int | None
    ) -> LineProblem | None:  # fmt: skip
        """Return why a line is no request, and note its name and its model if it is one."""
        line = self._parse(number, text)
        if isinstance(line, LineProblem):
            return line
        if max_models is not None and len(line.model) > MAX_MODEL_CHARS:
            return LineProblem(
                number, f"body.model has {len(line.model)} characters, the limit is {MAX_MODEL_CHARS}"
            )  # fmt: skip
        model_bytes = 0
        if line.model not in noted.models:
            if len(noted.models) == max_models:
                return LineProblem(
                    number, f"body.model is another one than the first {max_models}, which is the limit"
                )  # fmt: skip
            model_bytes = len(line.model.encode("utf-8", "surrogatepass"))
            if max_models is not None and noted.models_bytes + model_bytes > MAX_MODEL_NAMES_BYTES:
                return LineProblem(
                    number,
                    f"the different names of body.model up to here have {noted.models_bytes + model_bytes} bytes, the "
                    f"limit of their sum is {MAX_MODEL_NAMES_BYTES}",
                )
        if (first := noted.numbers.setdefault(custom_id_digest(line.custom_id), number)) != number:
            return LineProblem(number, f"custom_id {line.custom_id[:40]!r} is that of line {first}, too")
        noted.models.setdefault(line.model, number)
        noted.models_bytes += model_bytes
        return None

    def _parse(self, number: int, text: bytes | None) -> BatchLine | LineProblem:
        if text is None:
            return LineProblem(number, f"it has more than {self._max_line_bytes} bytes, which is the limit of a body")
        try:
            return _parse(number, text, self._paths)
        except InvalidRequest as error:
            return LineProblem(number, error.message)

    def _numbered(self, is_stopped: IsStopped) -> Iterator[tuple[int, bytes | None]]:
        """Yield the number and the text of each line until `is_stopped`; None for the text of one that is too long.

        Of empty lines that follow one another only some are yielded, with the text b"", and those between them are
        counted.
        """
        limit = -1 if self._max_line_bytes is None else self._max_line_bytes + len(codecs.BOM_UTF8) + len(b"\r\n")
        with BufferedReader(self._path.open("rb", buffering=0), BUFFER_BYTES) as file:
            number = 0
            while not is_stopped() and (piece := file.readline(limit)):
                number += 1
                is_end = piece.endswith(b"\n")
                text = piece.removeprefix(codecs.BOM_UTF8) if number == 1 else piece
                if 0 <= limit <= len(piece) and not is_end:
                    yield number, None
                elif text.strip():
                    yield number, text
                else:
                    yield number, b""
                    number += _skip_empty_lines(file) if is_end else 0
                while not is_end and not is_stopped() and (rest := file.readline(BUFFER_BYTES)):
                    is_end = rest.endswith(b"\n")


def _skip_empty_lines(file: "BufferedReader[FileIO]") -> int:
    """Skip the empty lines at the beginning of what the buffer has; returns their number."""
    block = file.peek()
    num_bytes = block.rfind(b"\n", 0, len(block) - len(block.lstrip())) + 1
    file.read(num_bytes)
    return block.count(b"\n", 0, num_bytes)


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

"""Logging: human-readable or JSON lines, on a stream and in a rotating file; only the command line configures it.

As a library Chairlift configures nothing: its loggers are under "chairlift" and follow the program's configuration.
`RecentLog` keeps the last records in memory, as short texts, for administrators.
"""

import copy
import json
import logging
import sys
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

from chairlift.observability.recent_log import RecentLog
from chairlift.observability.url_check_and_redaction import without_user_info

if TYPE_CHECKING:
    from chairlift.observability.background_handler import BackgroundHandler

ROOT = "chairlift"
HUMAN, JSON = "human", "json"
FORMATS = (HUMAN, JSON)
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

BRIEF = "chairlift: %(message)s"
DETAILED = "%(asctime)s %(levelname)s %(name)s: %(message)s"

current_id: ContextVar[str] = ContextVar("chairlift_request_id", default="")
"""Id of the request that the current task serves; "" without one. Each line that the task logs carries it."""

current_trace_id: ContextVar[str] = ContextVar("chairlift_trace_id", default="")
"""Id of the trace of that request, "" unless the trace is sampled. Each line that the task logs carries it, too."""

# Escapes control characters: a message cannot start a new line or control a terminal.
_CONTROL_ESCAPES = {code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)] if chr(code) != "\t"}
_RECORD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Levels, format and destinations of the log.

    Attributes:
        level: lowest level in the file, and on the stream unless `stream_level` is higher.
        stream_level: lowest level on the stream.
        form: "human" or "json", for both.
        detailed: whether human-readable stream lines have time, level and logger; lines in the file always do.
        file: path of the log file, "" for none.
        max_bytes: a file that would exceed this is renamed to FILE.1, that to FILE.2 and so on; 0 means no limit.
        backups: number of renamed files to keep, at least 1 when max_bytes is set.

    Raises ValueError.
    """

    level: int = logging.WARNING
    stream_level: int = logging.WARNING
    form: str = HUMAN
    detailed: bool = False
    file: str = ""
    max_bytes: int = 50_000_000
    backups: int = 5

    def __post_init__(self) -> None:
        if self.max_bytes < 0 or self.backups < 0:
            raise ValueError("a log file's size and the number of its backups cannot be negative")
        if self.max_bytes and not self.backups:
            raise ValueError("a log file of limited size needs at least one backup; a size of 0 lets it grow")


class HumanFormatter(logging.Formatter):
    """Formats each record as one line; a traceback follows, indented or at the end of the line.

    Passwords of URLs are hidden in both.
    """

    def __init__(self, form: str, *, tracebacks: bool = True) -> None:
        super().__init__(form)
        self._tracebacks = tracebacks
        self._detailed = form == DETAILED

    def format(self, record: logging.LogRecord) -> str:
        """Return the line and the traceback; ignores a traceback text cached by another formatter."""
        own = copy.copy(record)
        own.exc_text = None
        if not self._tracebacks and own.exc_info:
            error = own.exc_info[1]
            own.msg, own.args = f"{record.getMessage()} ({type(error).__name__}: {error}; -v shows where)", ()
            own.exc_info = own.stack_info = None
        if self._detailed and (request_id := _request_id(record)):
            ids = " ".join(filter(None, (request_id, _trace_id(record))))
            own.msg, own.args = f"[{ids}] {own.getMessage()}", ()
        return without_user_info(super().format(own))

    def formatException(self, ei: Any) -> str:  # noqa: N802  # logging's own name
        """Return the traceback with control characters escaped."""
        lines = super().formatException(ei).split("\n")
        return "\n".join("    " + line.translate(_CONTROL_ESCAPES) for line in lines)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's own name
        """Return the line with control characters escaped."""
        record.message = record.message.translate(_CONTROL_ESCAPES)
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """Formats each record as one JSON object.

    Its keys: time, level, logger, message, process, thread, error and those of `extra`. Passwords of URLs are hidden.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON object."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
            "thread": record.threadName,
        }
        if request_id := _request_id(record):
            fields["request_id"] = request_id
        if trace_id := _trace_id(record):
            fields["trace_id"] = trace_id
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        fields |= {name: value for name, value in vars(record).items() if name not in _RECORD_FIELDS}
        return without_user_info(json.dumps(fields, default=str, ensure_ascii=False))


def _request_id(record: logging.LogRecord) -> str:
    """Return the request id of a record: the attached one, else the current task's."""
    return getattr(record, "request_id", "") or current_id.get()


def _trace_id(record: logging.LogRecord) -> str:
    """Return the trace id of a record: the attached one, else the current task's."""
    return getattr(record, "trace_id", "") or current_trace_id.get()


def use_background_writer() -> "BackgroundHandler":
    """Write the log in a background thread from now on.

    Neither a full disk nor a pipe without a reader then blocks a caller.

    Returns the handler in front of the others; the caller closes it.
    """
    from chairlift.observability.background_handler import BackgroundHandler

    log = logging.getLogger(ROOT)
    recent = [handler for handler in log.handlers if isinstance(handler, RecentLog)]
    background = BackgroundHandler([handler for handler in log.handlers if not isinstance(handler, RecentLog)])
    background.addFilter(_attach_ids)
    log.handlers[:] = [background, *recent]
    return background


def recent_lines() -> list[dict[str, Any]]:
    """Return the last log records of this process, the oldest first; none where the log is not configured."""
    handlers = logging.getLogger(ROOT).handlers
    return [line for handler in handlers if isinstance(handler, RecentLog) for line in handler.lines()]


def line_handler(stream: TextIO) -> "BackgroundHandler":
    """Return a handler that writes bare human-readable lines in its own thread."""
    from chairlift.observability.background_handler import BackgroundHandler

    return BackgroundHandler([logging.StreamHandler(stream)])


def _attach_ids(record: logging.LogRecord) -> bool:
    """Attach the ids of the current request and its trace to the record while they are known."""
    if request := current_id.get():
        record.request_id = request
    if trace := current_trace_id.get():
        record.trace_id = trace
    return True


def configure(config: LogConfig, stream: TextIO) -> None:
    """Configure the log and close the handlers of an earlier call. Raises OSError for the file."""
    handlers: list[logging.Handler] = [logging.StreamHandler(stream)]
    handlers[0].setLevel(max(config.level, config.stream_level))
    handlers[0].setFormatter(_formatter(config.form, detailed=config.detailed))
    if config.file:
        handlers.append(_file_handler(config))
    log = logging.getLogger(ROOT)
    for old in log.handlers[:]:
        log.removeHandler(old)
        old.close()
    for handler in handlers:
        log.addHandler(handler)
    recent = RecentLog()
    recent.addFilter(_attach_ids)
    log.addHandler(recent)
    log.propagate = False
    log.setLevel(min(handler.level for handler in handlers))


def set_levels(config: LogConfig) -> None:
    """Set the levels of the existing handlers to those of the config."""
    from chairlift.observability.background_handler import BackgroundHandler

    log = logging.getLogger(ROOT)
    fronts = [handler for handler in log.handlers if isinstance(handler, BackgroundHandler)]
    own = [handler for handler in log.handlers if not isinstance(handler, RecentLog)]
    writers = [writer for front in fronts for writer in front.handlers] or own
    for writer in writers:
        has_file = isinstance(writer, logging.FileHandler)
        writer.setLevel(config.level if has_file else max(config.level, config.stream_level))
    least = min(writer.level for writer in writers)
    for front in fronts:
        front.setLevel(least)
    log.setLevel(least)


def _file_handler(config: LogConfig) -> logging.Handler:
    from logging.handlers import RotatingFileHandler  # a costly import, and --help should be fast

    class File(RotatingFileHandler):
        """Reports once that it cannot write, and again after writing has worked in between."""

        _fails = False

        def emit(self, record: logging.LogRecord) -> None:
            failed, self._fails = self._fails, False
            self._failed_before = failed
            super().emit(record)

        def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's own name
            self._fails = True
            if not self._failed_before:
                error = sys.exc_info()[1]
                reason = str(getattr(error, "strerror", None) or error)
                reason = reason[:1].lower() + reason[1:]
                sys.stderr.write(f"chairlift: cannot write the log file {config.file}: {reason}\n")

    handler = File(
        config.file, maxBytes=config.max_bytes, backupCount=config.backups, encoding="utf-8", errors="backslashreplace"
    )
    handler.setLevel(config.level)
    handler.setFormatter(_formatter(config.form, detailed=True))
    return handler


def _formatter(form: str, *, detailed: bool) -> logging.Formatter:
    return JsonFormatter() if form == JSON else HumanFormatter(DETAILED if detailed else BRIEF, tracebacks=detailed)

"""Logs: lines for people or JSON, on a stream and in a file that rotates; configured by the command line alone.

As a library Chairlift configures nothing: its loggers lie under "chairlift" and do what the program decides.
"""

import copy
import json
import logging
import sys
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from chairlift.observability.background_handler import Background

ROOT = "chairlift"
HUMAN, JSON = "human", "json"
FORMATS = (HUMAN, JSON)
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

BRIEF = "chairlift: %(message)s"
DETAILED = "%(asctime)s %(levelname)s %(name)s: %(message)s"

current_id: ContextVar[str] = ContextVar("chairlift_request_id", default="")
"""Of the request that this task works for; "" outside of one. Every line that is logged meanwhile has it."""

# Nothing that is logged can begin a line of its own, or steer a terminal.
_TAMED = {code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)] if chr(code) != "\t"}
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """What is logged, and where.

    Attributes:
        level: of the file, and of the stream unless it is quieter.
        stream_level: of the stream.
        form: "human" or "json", of both.
        detailed: whether lines for people on the stream have time, level and logger; those in the file always do.
        file: "" for none.
        max_bytes: a file that would grow beyond is renamed to FILE.1, that to FILE.2 and so on; 0 lets it grow.
        backups: how many of those are kept, at least 1 where there is such a limit.

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
    """One line a record, whatever its message is made of. A traceback follows below, indented, or is its last line."""

    def __init__(self, form: str, *, tracebacks: bool = True) -> None:
        super().__init__(form)
        self._tracebacks = tracebacks
        self._detailed = form == DETAILED

    def format(self, record: logging.LogRecord) -> str:
        """Write the line and what follows; what another formatter made of the traceback is not taken over."""
        mine = copy.copy(record)
        mine.exc_text = None
        if not self._tracebacks and mine.exc_info:
            error = mine.exc_info[1]
            mine.msg, mine.args = f"{record.getMessage()} ({type(error).__name__}: {error}; -v shows where)", ()
            mine.exc_info = mine.stack_info = None
        if self._detailed and (request := _request(record)):
            mine.msg, mine.args = f"[{request}] {mine.getMessage()}", ()
        return super().format(mine)

    def formatException(self, ei: Any) -> str:  # noqa: N802  # logging's own name
        """Write a traceback, which may quote anything."""
        lines = super().formatException(ei).split("\n")
        return "\n".join("    " + line.translate(_TAMED) for line in lines)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's own name
        """Write the line."""
        record.message = record.message.translate(_TAMED)
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, process, thread; error; whatever `extra` brings."""

    def format(self, record: logging.LogRecord) -> str:
        """Write the object."""
        said: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
            "thread": record.threadName,
        }
        if request := _request(record):
            said["request_id"] = request
        if record.exc_info:
            said["error"] = self.formatException(record.exc_info)
        said |= {name: value for name, value in vars(record).items() if name not in _OWN}
        return json.dumps(said, default=str, ensure_ascii=False)


def _request(record: logging.LogRecord) -> str:
    """Return the id of the request that a line is of: noted with it, where another task writes it down."""
    return getattr(record, "request_id", "") or current_id.get()


def write_in_background() -> "Background":
    """From now on a thread of its own writes what is logged: a full disk, or a pipe that nobody reads, stops nobody.

    Returns what stands before the handlers, which the caller closes.
    """
    from chairlift.observability.background_handler import Background

    log = logging.getLogger(ROOT)
    background = Background(log.handlers)
    background.addFilter(_noted)
    log.handlers[:] = [background]
    return background


def lines_to(stream: TextIO) -> "Background":
    """Return a handler of bare lines for people, written by a thread of its own."""
    from chairlift.observability.background_handler import Background

    return Background([logging.StreamHandler(stream)])


def _noted(record: logging.LogRecord) -> bool:
    """Note whose request a line is of, while that is known."""
    if request := current_id.get():
        record.request_id = request
    return True


def configure(config: LogConfig, stream: TextIO) -> None:
    """Log as the config says from now on; what an earlier call set up is closed. Raises OSError for the file."""
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
    log.propagate = False
    log.setLevel(min(handler.level for handler in handlers))


def set_levels(config: LogConfig) -> None:
    """Log as much as the config says from now on, to where it went before."""
    from chairlift.observability.background_handler import Background

    log = logging.getLogger(ROOT)
    fronts = [handler for handler in log.handlers if isinstance(handler, Background)]
    writers = [writer for front in fronts for writer in front.handlers] or log.handlers
    for writer in writers:
        has_file = isinstance(writer, logging.FileHandler)
        writer.setLevel(config.level if has_file else max(config.level, config.stream_level))
    least = min(writer.level for writer in writers)
    for front in fronts:
        front.setLevel(least)
    log.setLevel(least)


def _file_handler(config: LogConfig) -> logging.Handler:
    from logging.handlers import RotatingFileHandler  # it imports much, and --help shall be fast

    class File(RotatingFileHandler):
        """Says once that it cannot write, and again when that comes back."""

        _fails = False

        def emit(self, record: logging.LogRecord) -> None:
            failed, self._fails = self._fails, False
            self._failed_before = failed
            super().emit(record)

        def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's own name
            self._fails = True
            if not self._failed_before:
                sys.stderr.write(f"chairlift: the log file {config.file} cannot be written: {sys.exc_info()[1]}\n")

    handler = File(
        config.file, maxBytes=config.max_bytes, backupCount=config.backups, encoding="utf-8", errors="backslashreplace"
    )
    handler.setLevel(config.level)
    handler.setFormatter(_formatter(config.form, detailed=True))
    return handler


def _formatter(form: str, *, detailed: bool) -> logging.Formatter:
    return JsonFormatter() if form == JSON else HumanFormatter(DETAILED if detailed else BRIEF, tracebacks=detailed)

"""The command line: exit codes, and what went wrong in a sentence. Nothing heavy is imported before a verb runs.

Exit codes: 0 done · 1 a request or the engine failed · 2 bad input, in one sentence · 130 interrupted · 141 no reader ·
143 terminated, which ends in the same orderly way as an interrupt.
"""

import argparse
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

from chairlift.cli.arg_parser import UsageError
from chairlift.cli.command_line import build_parser, check_verb
from chairlift.cli.settings import settings

FAILED, BAD_INPUT, INTERRUPTED, BROKEN_PIPE, TERMINATED = 1, 2, 130, 141, 143


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (the process's own when None); returns the exit code."""
    arguments: argparse.Namespace | None = None
    termination = _Termination()
    _open_what_is_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")
    try:
        arguments = _parse(sys.argv[1:] if argv is None else argv)
        with termination:
            code = _run(arguments)
        sys.stdout.flush()
        return code
    except UsageError as error:
        return _say(f"{error}", BAD_INPUT)
    except KeyboardInterrupt:
        if termination.came:
            return _say("terminated", TERMINATED)
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # What is still buffered must not fail again when Python leaves.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:
        return _explain(error, arguments)


class _Termination:
    """Lets SIGTERM, while this is entered, do whatever Ctrl-C would do at that moment; notes that it came."""

    def __init__(self) -> None:
        self.came = False
        self._before: Any = None

    def __enter__(self) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._before = signal.signal(signal.SIGTERM, self._take)

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        interrupt = signal.getsignal(signal.SIGINT)
        if not callable(interrupt):  # Ctrl-C is ignored, as in the background of a script
            raise KeyboardInterrupt
        interrupt(signal.SIGINT, frame)


def _open_what_is_closed() -> None:
    """Put an empty stream where the caller closed one: else another file gets its number, and what is said there."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # lives as long as the process


def _say(sentence: str, code: int) -> int:
    print(f"chairlift: {' '.join(sentence.split())}", file=sys.stderr, flush=True)
    return code


def _explain(error: Exception, arguments: argparse.Namespace | None) -> int:
    """Turn an error into a sentence and its exit code; with -v its traceback comes first."""
    from chairlift.cli.settings.sources import setting_origin
    from chairlift.core.errors import ChairliftError, ConfigError, InvalidRequest, ModelError

    verbose = arguments is not None and arguments.verbose
    if verbose:
        import traceback

        traceback.print_exception(error)
    if isinstance(error, argparse.ArgumentTypeError):  # what an environment variable, or a file, says
        return _say(str(error), BAD_INPUT)
    if isinstance(error, ConfigError | ModelError | InvalidRequest):
        where = None if arguments is None else setting_origin(error.details, arguments, settings.environment())
        return _say(error.message + (f" ({where})" if where else ""), BAD_INPUT)
    if isinstance(error, ChairliftError):
        return _say(error.message, FAILED)
    if isinstance(error, OSError) and error.strerror:
        return _say(error.strerror + (f": {error.filename}" if error.filename else ""), FAILED)
    hint = "" if verbose else " (-v shows where)"
    return _say(f"{type(error).__name__}: {error}{hint}", FAILED)


def _run(arguments: argparse.Namespace) -> int:
    from chairlift.cli.console import configure_logging
    from chairlift.cli.settings.sources import load_settings_file, warn_unread_settings

    environ = settings.environment()
    load_settings_file(arguments, environ)
    configure_logging(arguments, environ)
    warn_unread_settings(arguments, environ)
    code: int = importlib.import_module(arguments.module).run(arguments)
    return code


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = build_parser()
    if not argv:
        parser.print_help(sys.stderr)
    check_verb(parser, argv)
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        arguments.parser.refuse(next((word for word in unknown if word.startswith("-")), unknown[0]))
    arguments.words = list(argv)
    return arguments

"""main(): runs a command line and turns every error into one sentence and an exit code.

Exit codes: 0 success · 1 a request or the engine failed · 2 invalid input · 130 interrupted · 141 broken pipe on
standard output · 143 terminated, after the same orderly shutdown as an interrupt. No heavy package is imported before a
command runs.
"""

import argparse
import errno
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

from chairlift.cli.arg_parser import UsageError
from chairlift.cli.command_line import build_parser, check_command, command_words
from chairlift.cli.settings.foreign_flag_actions import merge_entries, merge_model
from chairlift.cli.settings.resolve_settings import process_environment
from chairlift.web.service.early_sighup import hold_reloads

SERVICES = ("serve", "router", "fleet", "autoscaler")
"""Commands that read their files again at SIGHUP."""

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a full or broken disk; without a file's name they are those of the standard output."""

FAILED, BAD_INPUT, INTERRUPTED, BROKEN_PIPE, TERMINATED = 1, 2, 130, 141, 143


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of the process; returns the exit code."""
    arguments: argparse.Namespace | None = None
    termination = _Termination()
    _open_closed_streams()
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")
    words = sys.argv[1:] if argv is None else argv
    if words and words[0] in SERVICES:
        hold_reloads()
    try:
        try:
            arguments = _parse(words)
        except SystemExit:  # after --help or --version
            sys.stdout.flush()
            raise
        with termination:
            code = _run(arguments)
        sys.stdout.flush()
        return code
    except UsageError as error:
        return _print_error(f"{error}", BAD_INPUT)
    except KeyboardInterrupt:
        if termination.is_requested:
            return _print_error("terminated", TERMINATED)
        return _print_error("interrupted", INTERRUPTED)
    except BrokenPipeError:
        _discard_stdout()
        return BROKEN_PIPE
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK_ERRORS and not error.filename:
            _discard_stdout()
        return _report_error(error, arguments)


def _discard_stdout() -> None:
    """Write the rest of the output nowhere: Python flushes it at exit, which must not fail again."""
    with suppress(OSError):  # standard output of a program that calls main() may be no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Termination:
    """Context in which SIGTERM is handled like Ctrl-C.

    Attributes:
        is_requested: whether SIGTERM arrived.
    """

    def __init__(self) -> None:
        self.is_requested = False
        self._before: Any = None

    def __enter__(self) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._before = signal.signal(signal.SIGTERM, self._on_terminate)

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _on_terminate(self, number: int, frame: FrameType | None) -> None:
        self.is_requested = True
        interrupt = signal.getsignal(signal.SIGINT)
        if not callable(interrupt):  # Ctrl-C is ignored, as in a background job of a script
            raise KeyboardInterrupt
        interrupt(signal.SIGINT, frame)


def _open_closed_streams() -> None:
    """Open /dev/null for each standard stream that the caller closed.

    Otherwise the next opened file would take its file descriptor and receive its output.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # lives as long as the process


def _print_error(sentence: str, code: int) -> int:
    from chairlift.cli.escape_control_chars import escape_line
    from chairlift.cli.terminal_fold import fold_for
    from chairlift.observability.url_check_and_redaction import without_user_info

    line = f"chairlift: {escape_line(without_user_info(' '.join(sentence.split())))}"
    print(fold_for(sys.stderr, line), file=sys.stderr, flush=True)
    return code


def _report_error(error: Exception, arguments: argparse.Namespace | None) -> int:
    """Print an error as one sentence, with -v after its traceback; returns the exit code."""
    from chairlift.cli.settings.setting_error_messages import message_as_written
    from chairlift.core.errors import ChairliftError, ConfigError, InvalidRequest, ModelError

    verbose = arguments is not None and arguments.verbose
    if verbose:
        import traceback

        from chairlift.observability.url_check_and_redaction import without_user_info

        sys.stderr.write(without_user_info("".join(traceback.format_exception(error))))
    if isinstance(error, argparse.ArgumentTypeError):  # a variable or a line of the settings file
        return _print_error(str(error), BAD_INPUT)
    if isinstance(error, ConfigError | ModelError | InvalidRequest):
        environ = process_environment()
        message = error.message if arguments is None else message_as_written(error, arguments, environ)
        return _print_error(message, BAD_INPUT)
    if isinstance(error, ChairliftError):
        return _print_error(error.message, FAILED)
    if isinstance(error, OSError) and error.errno in DISK_ERRORS and not error.filename:
        from chairlift.core.file_writes import write_error_reason

        return _print_error(f"cannot write the standard output: {write_error_reason(error, '')}", FAILED)
    if isinstance(error, OSError) and error.strerror:
        return _print_error(error.strerror + (f": {error.filename}" if error.filename else ""), FAILED)
    hint = "" if verbose else " (run with -v for the traceback)"
    return _print_error(f"{type(error).__name__}: {error}{hint}", FAILED)


def _run(arguments: argparse.Namespace) -> int:
    from chairlift.cli.log_setup import configure_logging
    from chairlift.cli.settings.load_settings_file import load_settings_file
    from chairlift.cli.settings.unused_settings import warn_unused_settings

    environ = process_environment()
    load_settings_file(arguments, environ)
    configure_logging(arguments, environ)
    warn_unused_settings(arguments, environ)
    code: int = importlib.import_module(arguments.module).run(arguments)
    return code


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    words = command_words(argv)
    parser = build_parser(words)
    if not argv:
        parser.print_help(sys.stderr)
        raise UsageError("name a command, such as `chairlift serve`")
    check_command(parser, words)
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        arguments.parser.reject(next((word for word in unknown if word.startswith("-")), unknown[0]))
    merge_model(arguments)
    merge_entries(arguments)
    arguments.argv = list(argv)
    return arguments

"""`chairlift key`: creates an API key and the line of a key file that accepts it."""

import argparse
import os
from pathlib import Path

from chairlift.cli.console import Console
from chairlift.cli.output_file_checks import check_output
from chairlift.core.file_writes import naming_file
from chairlift.web.auth.api_keys import key_line, new_key
from chairlift.web.batch_files.output_journal import append_whole


def run(arguments: argparse.Namespace) -> int:
    """Create a key and print it; returns the exit code. Raises ConfigError and FileNotWritten."""
    key = new_key()
    line = key_line(key, arguments.tenant, admin=arguments.admin)
    console = Console(quiet=arguments.quiet)
    if arguments.key_file is None:
        console.print_line("line for a key file:")
        console.print_exactly(line)
    else:
        check_output(arguments.key_file)
        with naming_file(arguments.key_file):
            _append_line(Path(arguments.key_file), line)
        console.print_line(f"added a line to {arguments.key_file}; the key is printed only now:")
    print(key)
    return 0


def _append_line(path: Path, line: str) -> None:
    """Append a line to a file, which is as before, or is not created, if that fails. Raises OSError."""
    is_new = not path.exists()
    last_byte = path.read_bytes()[-1:] if path.is_file() else b""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        # The last line of the file may have no newline.
        append_whole(descriptor, (b"" if last_byte in (b"", b"\n") else b"\n") + line.encode() + b"\n")
    except OSError:
        if is_new and not os.fstat(descriptor).st_size:  # another command may have written to it
            path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)

"""`chairlift key`: creates an API key and the line of a key file that accepts it."""

import argparse
import os
from pathlib import Path

from chairlift.cli.console import Console
from chairlift.core.errors import ConfigError
from chairlift.web.auth.api_keys import key_line, new_key


def run(arguments: argparse.Namespace) -> int:
    """Create a key and print it; returns the exit code. Raises ConfigError."""
    key = new_key()
    line = key_line(key, arguments.tenant, admin=arguments.admin)
    console = Console(quiet=arguments.quiet)
    if arguments.key_file is None:
        console.print_line(f"line for a key file: {line}")
    else:
        try:
            path = Path(arguments.key_file)
            last_byte = path.read_bytes()[-1:] if path.is_file() else b""
            descriptor = os.open(arguments.key_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            # The last line of the file may have no newline.
            with os.fdopen(descriptor, "a", encoding="utf-8") as file:
                file.write(("" if last_byte in (b"", b"\n") else "\n") + line + "\n")
        except OSError as error:
            raise ConfigError(f"cannot write {arguments.key_file}: {error.strerror}", option="key_file") from None
        console.print_line(f"added a line to {arguments.key_file}; the key is printed only now:")
    print(key)
    return 0

"""write, print_line, tell: write a report to a file and print its lines."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from chairlift.core.file_writes import write_whole


def write(path: str, report: Mapping[str, Any]) -> None:
    """Write a report as JSON, replacing an existing file only when the new one is complete.

    Raises FileNotWritten.
    """
    write_whole(path, json.dumps(report, indent=1, allow_nan=False).encode() + b"\n")


def print_line(line: str) -> None:
    """Write a line to the standard output at once, as a `note` of the functions here."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def tell(
    lines: Iterable[str], path: str | None, report: Mapping[str, Any], say: Callable[[str], None]
) -> None:  # fmt: skip
    """Print the lines of a report; then write it to `path`, if there is one, even when printing failed."""
    try:
        for line in lines:
            say(line)
    finally:
        if path is not None:
            write(path, report)

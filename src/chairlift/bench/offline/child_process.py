"""run_child, exit_with_parent: the side of a subprocess that measures."""

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chairlift.bench.offline.run_spec import RunSpec
from chairlift.bench.offline.subprocess_run import PARENT_MARKER
from chairlift.core.errors import ChairliftError


def run_child(arguments: Sequence[str], measure: Callable[[RunSpec], Mapping[str, Any]]) -> int:
    """Run in the child: read the specification from the first file and write the result to the second.

    A ChairliftError is written as the result, so that the parent can raise it. Returns the exit code.
    """
    spec_file, result_file = (Path(word) for word in arguments)
    try:
        result = dict(measure(RunSpec.decode(spec_file.read_bytes())))
        code = 0
    except ChairliftError as error:
        result = {"error": {"code": error.code, "message": error.message}}
        code = 1
    unfinished = result_file.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(result), encoding="utf-8")
    unfinished.replace(result_file)
    return code


def exit_with_parent(before_exit: Callable[[], None] = lambda: None) -> None:
    """End this process when its parent ends, which closes this process's standard input.

    Does nothing in a process that send() did not start, such as one started by hand. `before_exit` is called first.
    """
    if not os.environ.pop(PARENT_MARKER, ""):
        return

    def wait() -> None:
        os.read(0, 1)
        try:
            before_exit()
        finally:
            os._exit(1)

    threading.Thread(target=wait, name="leave-with-parent", daemon=True).start()

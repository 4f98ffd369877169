"""Runs in a process of their own: how an order goes out as a file, and its result, or what went wrong, comes back."""

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from chairlift.bench.offline.run_spec import RunSpec
from chairlift.core.errors import ChairliftError, error_from_wire

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
CALLED = "CHAIRLIFT_BENCH_CALLED"
"""Says in a child's environment that its standard input is a pipe from send()."""

LAST_WORDS = 300
"""Characters of a dead child's standard error that are shown."""


def run_child(words: Sequence[str], measure: Callable[[RunSpec], Mapping[str, Any]]) -> int:
    """Be the child: read the order from the first file, write what was measured to the second; returns the exit code.

    An error of Chairlift's own is written there, too, so that the parent can raise it.
    """
    order_file, result_file = (Path(word) for word in words)
    try:
        result = dict(measure(RunSpec.decode(order_file.read_bytes())))
        code = 0
    except ChairliftError as error:
        result = {"error": {"code": error.code, "message": error.message}}
        code = 1
    unfinished = result_file.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(result), encoding="utf-8")
    unfinished.replace(result_file)
    return code


def exit_with_parent(first: Callable[[], None] = lambda: None) -> None:
    """End this process when the one that called send() is gone: its end of our standard input closes.

    Does nothing where nobody called that, as for somebody who runs an order by hand. `first` is called before the end.
    """
    if not os.environ.pop(CALLED, ""):
        return

    def wait() -> None:
        os.read(0, 1)
        try:
            first()
        finally:
            os._exit(1)

    threading.Thread(target=wait, name="leave-with-parent", daemon=True).start()


def _run(command: Sequence[str], environ: Mapping[str, str], said: BinaryIO | None) -> int:
    """Run a program whose standard input stays open as long as this one is there; returns its exit code."""
    with subprocess.Popen(
        command, env={**environ, CALLED: "1"}, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said
    ) as process:
        try:
            return process.wait()
        except BaseException:
            process.kill()
            raise


def send(command: Sequence[str], order: RunSpec, *, threads: int | None = None, shown: bool = False) -> dict[str, Any]:
    """Be the parent: run the command with an order file and a result file behind it; returns what it measured.

    Args:
        command: a program and its first words.
        order: what it shall do.
        threads: that it may compute with; None is what it takes by itself.
        shown: whether its standard error is seen; else only its end, and only when it fails.

    Raises the child's own error, or ChairliftError when it ended without a word.
    """
    result = exchange(command, order.encode(), threads=threads, shown=shown)
    if "error" in result:
        raise error_from_wire(result["error"]["code"], result["error"]["message"], {})
    return result


def environ_with(folder: Path) -> dict[str, str]:
    """Return this process's environment, in which Python finds a folder's modules, too."""
    paths = (str(folder), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def exchange(
    command: Sequence[str],
    asked: bytes,
    *,
    threads: int | None = None,
    shown: bool = False,
    environ: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run the command with a file of what is asked and one for the result behind it; returns the result.

    Its environment is `environ`, or this process's own. Raises ChairliftError when it ended without a result. For the
    other arguments see send().
    """
    environ = dict(os.environ if environ is None else environ)
    if threads is not None:
        environ |= dict.fromkeys(THREAD_VARIABLES, str(threads))
    with tempfile.TemporaryDirectory(prefix="chairlift-bench-") as folder:
        order_file, result_file = Path(folder, "order.json"), Path(folder, "result.json")
        order_file.write_bytes(asked)
        with Path(folder, "stderr").open("w+b") as said:
            code = _run([*command, str(order_file), str(result_file)], environ, None if shown else said)
            said.seek(0)
            last = said.read().decode("utf-8", "replace").strip()[-LAST_WORDS:]
        if not result_file.exists():
            raise ChairliftError(f"a run ended with exit code {code} and no result: {last or 'silently'}")
        result: dict[str, Any] = json.loads(result_file.read_text(encoding="utf-8"))
    return result

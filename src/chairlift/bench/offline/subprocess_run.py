"""send: runs a specification in a subprocess; specification, result and error are passed as files."""

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from chairlift.bench.offline.run_spec import RunSpec
from chairlift.core.errors import ChairliftError, error_from_wire

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
PARENT_MARKER = "CHAIRLIFT_BENCH_CALLED"
"""Environment variable that tells a child that its standard input is a pipe from send()."""

STDERR_TAIL_CHARS = 300
"""Characters of a failed child's standard error that the error message shows."""


def _run(command: Sequence[str], environ: Mapping[str, str], stderr: BinaryIO | None) -> int:
    """Run a program with a standard input that stays open while this process lives.

    Returns its exit code.
    """
    with subprocess.Popen(
        command, env={**environ, PARENT_MARKER: "1"}, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=stderr
    ) as process:
        try:
            return process.wait()
        except BaseException:
            process.kill()
            raise


def send(command: Sequence[str], spec: RunSpec, *, threads: int | None = None, shown: bool = False) -> dict[str, Any]:
    """Run the command on a specification in a subprocess and return its result.

    Args:
        command: a program and its first arguments; the paths of the specification and the result are appended.
        spec: the specification of the run.
        threads: number of compute threads; None for the program's default.
        shown: whether its standard error is shown; else only the end of it, when the program fails.

    Raises the child's own error, or ChairliftError when it ended without a result.
    """
    result = exchange(command, spec.encode(), threads=threads, shown=shown)
    if "error" in result:
        raise error_from_wire(result["error"]["code"], result["error"]["message"], {})
    return result


def environ_with(folder: Path) -> dict[str, str]:
    """Return this process's environment with a folder put first on PYTHONPATH."""
    paths = (str(folder), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def exchange(
    command: Sequence[str],
    request: bytes,
    *,
    threads: int | None = None,
    shown: bool = False,
    environ: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run the command with the paths of a request file and a result file appended; returns the result.

    `environ` is the child's environment, by default this process's. send() describes the other arguments.

    Raises ChairliftError when the command ended without a result.
    """
    environ = dict(os.environ if environ is None else environ)
    if threads is not None:
        environ |= dict.fromkeys(THREAD_VARIABLES, str(threads))
    with tempfile.TemporaryDirectory(prefix="chairlift-bench-") as folder:
        spec_file, result_file = Path(folder, "order.json"), Path(folder, "result.json")
        spec_file.write_bytes(request)
        with Path(folder, "stderr").open("w+b") as stderr:
            code = _run([*command, str(spec_file), str(result_file)], environ, None if shown else stderr)
            stderr.seek(0)
            stderr_tail = stderr.read().decode("utf-8", "replace").strip()[-STDERR_TAIL_CHARS:]
        if not result_file.exists():
            raise ChairliftError(
                f"a run ended with exit code {code} and no result: {stderr_tail or 'it printed no error'}"
            )
        result: dict[str, Any] = json.loads(result_file.read_text(encoding="utf-8"))
    return result

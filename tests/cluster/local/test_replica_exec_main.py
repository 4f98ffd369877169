"""replica_exec_main notes its process id, sets the CPUs and becomes the command; it imports no package."""

import ast
import os
import subprocess
import sys
from pathlib import Path

from chairlift.cluster.local import replica_exec_main

CODE = "import os, sys; print(os.getpid(), sorted(os.sched_getaffinity(0)), sys.argv[1:], os.environ.get('PYTHONPATH'))"


def launch(folder: Path, cpus: str, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-S", replica_exec_main.__file__, str(folder), cpus, *command],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": "kept"}, timeout=30,
    )  # fmt: skip


def test_it_becomes_the_command_with_its_process_id_cpus_and_environment(tmp_path: Path) -> None:
    cpu = max(os.sched_getaffinity(0))
    done = launch(tmp_path, str(cpu), sys.executable, "-S", "-c", CODE, "--port", "1")
    pid = (tmp_path / "pid").read_text()
    assert done.stdout == f"{pid} [{cpu}] ['--port', '1'] kept\n", done.stderr
    assert (tmp_path / "pid").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["pid"]


def test_cpus_that_are_gone_do_not_keep_a_replica_from_starting(tmp_path: Path) -> None:
    assert launch(tmp_path, "4000", "true").returncode == 0


def test_a_command_that_does_not_exist_is_named(tmp_path: Path) -> None:
    done = launch(tmp_path, "", "no-such-command")
    assert done.returncode == 127 and "cannot run no-such-command: " in done.stderr


def test_it_imports_the_standard_library_only() -> None:
    tree = ast.parse(Path(replica_exec_main.__file__).read_text())
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {getattr(node, "module", None) or node.names[0].name for node in nodes}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names

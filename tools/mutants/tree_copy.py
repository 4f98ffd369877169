"""TreeCopy: a copy of the project with a Python environment that imports the copy's source, for one run of tests."""

import shutil
import subprocess
import sysconfig
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SKIPPED = frozenset({
    ".git", ".venv", ".hypothesis", ".import_linter_cache", ".mypy_cache", ".pytest_cache", ".ruff_cache", "build",
    "dist",
})  # fmt: skip
"""Entries of the project's root that no test reads."""

COMPILE_MODULE = "chairlift.model.kernels.cpu.compile"
"""Module whose command compiles the native library beside it."""

COMPILE_TIMEOUT_SECONDS = 900.0


class CopyFailed(Exception):
    """The native library of a copy could not be compiled."""


@dataclass(frozen=True, slots=True)
class TreeCopy:
    """A copy that is removed after its run.

    Attributes:
        root: the copy's root.
        python: interpreter of the copy's environment. Child processes of the tests that start it, or sys.executable,
            import the copy's source, whatever their PYTHONPATH is.
    """

    root: Path
    python: Path

    def compile_library(self) -> None:
        """Compile the native library from the copy's source. Raises CopyFailed."""
        command = [str(self.python), "-m", COMPILE_MODULE]
        compiled = subprocess.run(
            command, cwd=self.root, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_SECONDS, check=False
        )
        if compiled.returncode:
            raise CopyFailed(f"the native library was not compiled: {compiled.stderr.strip()[-2000:]}")


@contextmanager
def copy_tree(root: Path) -> Iterator[TreeCopy]:
    """Copy a project to a temporary folder and give it an environment with the packages of this one."""

    def skipped(folder: str, names: list[str]) -> set[str]:
        if Path(folder) == root:
            return {*SKIPPED.intersection(names)}
        # pytest's compiled tests name the files that they were compiled from.
        return {"__pycache__"}.intersection(names) if Path(folder).is_relative_to(root / "tests") else set()

    with tempfile.TemporaryDirectory(prefix="chairlift-mutant-") as folder:
        copied, environment = Path(folder) / "tree", Path(folder) / "venv"
        shutil.copytree(root, copied, ignore=skipped)
        venv.create(environment, symlinks=True)
        variables = {"base": str(environment), "platbase": str(environment)}
        # The packages' folder is a mere path here: its own .pth files, such as an editable install's, are not read.
        paths = dict.fromkeys([str(copied / "src"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
        site = Path(sysconfig.get_path("purelib", vars=variables))
        (site / "mutants.pth").write_text("\n".join(paths) + "\n", encoding="utf-8")
        yield TreeCopy(copied, environment / "bin" / "python")

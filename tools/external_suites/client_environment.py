"""make_python(), install_node_modules(): environments of the clients under test, without Chairlift or torch."""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

MIN_NODE_VERSION = 20
"""Oldest major version of Node that the tests run on."""


def make_python(pins: Path, folder: Path) -> Path:
    """Return the Python of an environment with the pinned packages; make it if it is missing or the pins changed.

    Raises RuntimeError with pip's output if a package cannot be installed.
    """
    stamp, python = folder / "pins.sha256", folder / "bin" / "python"
    digest = hashlib.sha256(pins.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != digest:
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(folder)], folder.parent)
        pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
        _run([*pip, "--requirement", str(pins)], folder.parent)
        stamp.write_text(digest, encoding="utf-8")
    return python


def install_node_modules(source: Path, folder: Path) -> None:
    """Copy the tests for Node and the list of their packages to a folder, and install the packages there.

    The list is package-lock.json, or package.json where there is none: agents bring their dependencies inside them.
    The packages are kept until the list changes. Raises RuntimeError with npm's output if that fails.
    """
    stamp, lock = folder / "node_modules" / ".lock.sha256", source / "package-lock.json"
    is_locked = lock.exists()
    digest = hashlib.sha256((lock if is_locked else source / "package.json").read_bytes()).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        shutil.copyfile(file, folder / file.name)
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != digest:
        _run(["npm", "ci" if is_locked else "install", "--no-audit", "--no-fund"], folder)
        stamp.write_text(digest, encoding="utf-8")


def find_missing_node() -> str | None:
    """Return why the tests for Node cannot run, None if they can."""
    if missing := [name for name in ("node", "npm") if shutil.which(name) is None]:
        return f"{' and '.join(missing)} not found in PATH"
    version = _run(["node", "--version"], Path.cwd()).strip()
    if int(version.removeprefix("v").partition(".")[0]) < MIN_NODE_VERSION:
        return f"node is {version}, version {MIN_NODE_VERSION} or later is needed"
    return None


def _run(command: Sequence[str], folder: Path) -> str:
    """Run a command and return its output. Raises RuntimeError with the output if it fails."""
    completed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{completed.stdout}{completed.stderr}")
    return completed.stdout

"""Fetching: the source distribution of an installed package, which has the tests that its wheel leaves out."""

import subprocess
import sys
import tarfile
from pathlib import Path


def unpacked(name: str, version: str, folder: Path) -> Path:
    """Return the unpacked sources of a package, fetched by pip where they are not in the folder yet.

    Raises RuntimeError where pip cannot get them, or where what it got has no tests.
    """
    source = folder / f"{name}-{version}"
    if not (source / "tests").is_dir():
        archive = folder / f"{name}-{version}.tar.gz"
        if not archive.exists():
            fetch(name, version, folder)
        unpack(archive, folder)
    if not (source / "tests").is_dir():
        raise RuntimeError(f"the source distribution of {name} {version} has no tests")
    return source


def fetch(name: str, version: str, folder: Path) -> None:
    """Let pip download it. Raises RuntimeError."""
    pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet"]
    exactly = ["--no-deps", "--no-binary", name, "--dest", str(folder), f"{name}=={version}"]
    done = subprocess.run([*pip, *exactly], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"pip could not fetch the sources of {name} {version}:\n{done.stdout}{done.stderr}")


def unpack(archive: Path, folder: Path) -> None:
    """Unpack the files of an archive; links are left out. Raises RuntimeError for a file outside of the folder.

    (tarfile's own filter for that is not in every 3.11.)
    """
    inside = folder.resolve()
    with tarfile.open(archive) as opened:
        for member in opened.getmembers():
            target = (inside / member.name).resolve()
            if not target.is_relative_to(inside):
                raise RuntimeError(f"{archive.name} has {member.name}, which is not below its folder")
            if (content := opened.extractfile(member) if member.isfile() else None) is not None:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content.read())

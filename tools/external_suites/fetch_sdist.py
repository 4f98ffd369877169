"""fetch_source(): downloads the source distribution of a package, which has the tests that its wheel leaves out."""

import subprocess
import sys
import tarfile
from pathlib import Path


def fetch_source(name: str, version: str, folder: Path, tests: str = "tests") -> Path:
    """Return the unpacked source distribution of a package; pip downloads it if the folder does not have it.

    `tests` is the folder with its tests. Raises RuntimeError if pip cannot download it, or if it has no tests.
    """
    source = folder / f"{name}-{version}"
    if not (source / tests).is_dir():
        archive = folder / f"{name}-{version}.tar.gz"
        if not archive.exists():
            download(name, version, folder)
        unpack(archive, folder)
    if not (source / tests).is_dir():
        raise RuntimeError(f"the source distribution of {name} {version} has no tests")
    return source


def download(name: str, version: str, folder: Path) -> None:
    """Download the source distribution with pip. Raises RuntimeError if pip fails."""
    pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet"]
    options = ["--no-deps", "--no-binary", name, "--dest", str(folder), f"{name}=={version}"]
    completed = subprocess.run([*pip, *options], capture_output=True, text=True, check=False)
    if completed.returncode:
        output = f"{completed.stdout}{completed.stderr}"
        raise RuntimeError(f"pip could not download the source distribution of {name} {version}:\n{output}")


def unpack(archive: Path, folder: Path) -> None:
    """Unpack the regular files of an archive. Raises RuntimeError for a file outside of the folder.

    Links are left out. tarfile's own filter is missing in early releases of Python 3.11.
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

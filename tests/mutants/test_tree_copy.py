"""copy_tree: the copy has what tests read and an environment of its own; it is removed afterwards."""

import subprocess
from pathlib import Path

import pytest

from mutants import tree_copy
from mutants.tree_copy import CopyFailed, copy_tree
from support_mutants import COMPILE_MODULE, make_project


def test_the_copy_leaves_out_what_no_test_reads(tmp_path: Path) -> None:
    root = make_project(tmp_path)
    for name in (".git/HEAD", ".venv/pyvenv.cfg", "build/report", "docs/build/page.md", "tests/__pycache__/test_a.pyc"):
        (root / name).parent.mkdir(parents=True)
        (root / name).touch()
    with copy_tree(root) as copy:
        names = {path.relative_to(copy.root).as_posix() for path in copy.root.rglob("*")}
        assert {"pytest.ini", "src/counting/parts.py", "tests/test_parts.py", "docs/build/page.md"} <= names
        assert not {".git", ".venv", "build", "tests/__pycache__"} & names
    assert not copy.root.exists() and not copy.python.exists()


@pytest.mark.full
def test_the_environment_has_the_packages_and_the_source_of_the_copy(tmp_path: Path) -> None:
    code = "import counting, pytest; print(counting.__file__)"
    with copy_tree(make_project(tmp_path)) as copy:
        found = subprocess.run([copy.python, "-c", code], env={}, capture_output=True, text=True, check=True)
        assert found.stdout == f"{copy.root}/src/counting/__init__.py\n"


def test_no_source_of_another_checkout_is_found(tmp_path: Path) -> None:
    """An editable install of this environment has no effect in that of the copy."""
    with copy_tree(make_project(tmp_path)) as copy:
        found = subprocess.run([copy.python, "-c", "import chairlift"], env={}, capture_output=True, text=True)
        assert "No module named 'chairlift'" in found.stderr


def test_the_library_is_compiled_from_the_source_of_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_copy, "COMPILE_MODULE", COMPILE_MODULE)
    root = make_project(tmp_path)
    with copy_tree(root) as copy:
        (copy.root / "src/counting/factor.cpp").write_text("FACTOR = 4\n")
        copy.compile_library()
        assert (copy.root / "src/counting/compiled.py").read_text() == "FACTOR = 4\n"
        assert (root / "src/counting/compiled.py").read_text() == "FACTOR = 3\n"
        (copy.root / "src/counting/factor.cpp").write_text("no code\n")
        with pytest.raises(CopyFailed, match=r"(?s)^the native library was not compiled: .*AssertionError"):
            copy.compile_library()

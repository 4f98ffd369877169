"""Environment: the commit of the package's own checkout only, and no name or folder of this machine."""

import json
import socket
import subprocess
from pathlib import Path

import pytest

import chairlift
from chairlift.bench.report import environment


def git(folder: Path, *words: str) -> str:
    own = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", "-C", str(folder), *own, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def checkout(folder: Path) -> Path:
    """Make a repository with a package under src; returns the package."""
    package = folder / "src" / "pack"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return package


def test_the_commit_is_that_of_the_checkout_and_changes_of_src_make_it_dirty(tmp_path: Path) -> None:
    package = checkout(tmp_path)
    head = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "result.json").write_text("{}")
    assert environment.source(package) == {"commit": head, "dirty": False}
    (package / "__init__.py").write_text("x = 1\n")
    assert environment.source(package) == {"commit": head, "dirty": True}


def test_a_change_during_a_measurement_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {"commit": "abc", "dirty": False}
    monkeypatch.setattr(environment, "source", lambda: dict(before))
    report = environment.environment(before)
    assert report.pop("versions") == environment.versions()
    assert report == {"commit": "abc", "dirty": False, "changed_meanwhile": False}
    for change in ({"commit": "abd"}, {"dirty": True}):
        monkeypatch.setattr(environment, "source", lambda change=change: {**before, **change})
        assert environment.environment(before)["changed_meanwhile"] is True
        assert environment.environment(before)["commit"] == "abc"


def test_a_copy_inside_another_projects_checkout_has_no_commit(tmp_path: Path) -> None:
    checkout(tmp_path)
    installed = tmp_path / "venv" / "chairlift"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    assert environment.source(installed) == {"commit": None, "dirty": None}
    assert environment.source(tmp_path / "nowhere") == {"commit": None, "dirty": None}


def test_a_machine_without_git_knows_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment.source() == {"commit": None, "dirty": None}


def test_versions_are_those_installed() -> None:
    found = environment.versions()
    assert found["chairlift"] == chairlift.__version__ and {"python", "torch", "numpy"} <= set(found)


def test_hardware_says_what_without_saying_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAIRLIFT_CPU_KERNELS", "avx2")
    assert environment.hardware()["forced_instruction_set"] == "avx2"
    monkeypatch.delenv("CHAIRLIFT_CPU_KERNELS")
    found = environment.hardware()
    assert "forced_instruction_set" not in found
    assert 1 <= found["usable_cores"] <= found["cores"] and found["memory_bytes"] > 2**28
    assert isinstance(found["cpu"], str) and isinstance(found["gpus"], list)
    assert socket.gethostname() not in json.dumps(found).split('"')

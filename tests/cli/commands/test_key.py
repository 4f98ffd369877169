"""`chairlift key`: prints the key once, and adds a line that a server reads to a key file."""

import os
import re
import stat
from pathlib import Path

import pytest

from chairlift.cli.main import main
from chairlift.web.auth.api_keys import read_keys
from chairlift.web.auth.principal import ADMIN, USER
from support_file_sizes import file_size_limit

KEY = re.compile(r"cl-[A-Za-z0-9_-]{43}\n")


def create_key(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    """Create a key; returns it and standard error."""
    assert main(["key", *words]) == 0
    out, err = capsys.readouterr()
    assert KEY.fullmatch(out), "standard output is the key alone"
    return out.strip(), err


def rejected(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["key", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "", "a key that is in no file is not printed"
    return err


def test_a_key_has_a_line_that_accepts_it_and_does_not_contain_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key, err = create_key(capsys, "alice")
    line = err.removeprefix("line for a key file:\n")
    assert key not in err and line != err
    file = tmp_path / "keys"
    file.write_text(line)
    principal = read_keys(file, {}).find(key.encode())
    assert principal is not None and (principal.tenant, principal.scopes) == ("alice", frozenset({USER}))


@pytest.mark.full
def test_keys_are_all_different(capsys: pytest.CaptureFixture[str]) -> None:
    assert len({create_key(capsys, "alice")[0] for _ in range(20)}) == 20


def test_keys_are_added_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.txt"
    alice, err = create_key(capsys, "alice", "--key-file", str(file))
    assert str(file) in err and alice not in err and "sha256" not in err
    root, _ = create_key(capsys, "root", "--admin", "--key-file", str(file))
    again, _ = create_key(capsys, "alice", "--key-file", str(file))
    ring = read_keys(file, {})
    principals = [ring.find(key.encode()) for key in (alice, root, again)]
    assert [each and (each.tenant, ADMIN in each.scopes) for each in principals] == [
        ("alice", False), ("root", True), ("alice", False),
    ]  # fmt: skip
    text = file.read_text()
    assert not any(key in text for key in (alice, root, again)), "the file has hashes only"
    assert ring.find(alice.encode() + b"x") is None


def test_a_new_file_is_its_owners_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = os.umask(0)
    try:
        create_key(capsys, "alice", "--key-file", str(tmp_path / "keys"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o600


@pytest.mark.share(2)
@pytest.mark.parametrize("before", ["", "# people\n", "# people", "\n\n", "bob sha256:" + "0" * 64])
def test_the_lines_of_a_file_stay_and_an_unfinished_last_line_is_completed(
    before: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys"
    file.write_text(before)
    key, _ = create_key(capsys, "alice", "--key-file", str(file))
    lines = file.read_text().splitlines()
    assert lines[:-1] == before.splitlines() and lines[-1].startswith("alice sha256:")
    ring = read_keys(file, {})
    assert ring.find(key.encode()) and len(ring.principals) == 1 + before.startswith("bob")


@pytest.mark.share(4)
@pytest.mark.parametrize("tenant", ["", "a b", "alice!", "ä", "x" * 129, "a/b", "a\tb", "#alice", "alice\n", "alice "])
def test_an_invalid_tenant_is_rejected(tenant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys"
    assert "tenant must have 1 to 128 characters" in rejected(capsys, tenant, "--key-file", str(file))
    assert not file.exists()


@pytest.mark.parametrize("name", ["", "no-such-folder/keys"])
def test_a_file_that_cannot_be_written_is_an_error_without_a_key(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    err = rejected(capsys, "alice", "--key-file", str(tmp_path / name))
    assert f"cannot write {tmp_path / name}".rstrip("/") in err


def test_a_full_disk_leaves_the_key_file_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys"
    file.write_text("# people\n")
    with file_size_limit(20):
        assert main(["key", "alice", "--key-file", str(file)]) == 1
    assert capsys.readouterr() == ("", f"chairlift: cannot write {file}: file too large\n")
    assert file.read_text() == "# people\n"
    new = tmp_path / "new"
    with file_size_limit(20):
        assert main(["key", "alice", "--key-file", str(new)]) == 1
    assert not new.exists()


def test_quiet_leaves_the_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert create_key(capsys, "alice", "-q", "--key-file", str(tmp_path / "keys"))[1] == ""


def test_a_key_needs_a_tenant(capsys: pytest.CaptureFixture[str]) -> None:
    assert rejected(capsys) == "chairlift: TENANT is required\n"

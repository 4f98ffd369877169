"""`chairlift key`: the key is shown once, its line is one that a server reads, and a key file stays whole."""

import os
import re
import stat
from pathlib import Path

import pytest

from chairlift.cli.main import main
from chairlift.web.auth import ADMIN, read_keys

KEY = re.compile(r"cl-[A-Za-z0-9_-]{43}\n")


def made(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    """Make a key; returns it, and what was said beside it."""
    assert main(["key", *words]) == 0
    out, err = capsys.readouterr()
    assert KEY.fullmatch(out), "standard output is the key alone"
    return out.strip(), err


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["key", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "", "no key is shown that no file knows"
    return err


def test_a_key_comes_with_a_line_that_knows_it_and_does_not_show_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key, said = made(capsys, "alice")
    line = said.removeprefix("the line for a key file: ")
    assert key not in said and line != said
    file = tmp_path / "keys"
    file.write_text(line)
    principal = read_keys(file, {}).find(key.encode())
    assert principal is not None and (principal.tenant, principal.scopes) == ("alice", frozenset())


def test_keys_are_all_different(capsys: pytest.CaptureFixture[str]) -> None:
    assert len({made(capsys, "alice")[0] for _ in range(20)}) == 20


def test_keys_are_added_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.txt"
    alice, said = made(capsys, "alice", "--key-file", str(file))
    assert str(file) in said and alice not in said and "sha256" not in said
    root, _ = made(capsys, "root", "--admin", "--key-file", str(file))
    again, _ = made(capsys, "alice", "--key-file", str(file))
    ring = read_keys(file, {})
    found = [ring.find(key.encode()) for key in (alice, root, again)]
    assert [each and (each.tenant, ADMIN in each.scopes) for each in found] == [
        ("alice", False), ("root", True), ("alice", False),
    ]  # fmt: skip
    text = file.read_text()
    assert not any(key in text for key in (alice, root, again)), "the file has hashes alone"
    assert ring.find(alice.encode() + b"x") is None


def test_a_new_file_is_its_owners_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = os.umask(0)
    try:
        made(capsys, "alice", "--key-file", str(tmp_path / "keys"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o600


@pytest.mark.parametrize("before", ["", "# people\n", "# people", "\n\n", "bob sha256:" + "0" * 64])
def test_what_is_in_a_file_stays_and_a_last_line_without_an_end_gets_one(
    before: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys"
    file.write_text(before)
    key, _ = made(capsys, "alice", "--key-file", str(file))
    lines = file.read_text().splitlines()
    assert lines[:-1] == before.splitlines() and lines[-1].startswith("alice sha256:")
    ring = read_keys(file, {})
    assert ring.find(key.encode()) and len(ring.principals) == 1 + before.startswith("bob")


@pytest.mark.parametrize("tenant", ["", "a b", "alice!", "ä", "x" * 129, "a/b", "a\tb", "#alice", "alice\n", "alice "])
def test_a_tenant_that_no_key_file_can_name_is_refused(
    tenant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys"
    assert "a tenant is 1 to 128 characters" in refused(capsys, tenant, "--key-file", str(file))
    assert not file.exists()


@pytest.mark.parametrize("place", ["", "no-such-folder/keys"])
def test_a_file_that_cannot_be_written_is_named_and_no_key_is_shown(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "alice", "--key-file", str(tmp_path / place))
    assert f"cannot write {tmp_path / place}".rstrip("/") in said


def test_quiet_leaves_the_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert made(capsys, "alice", "-q", "--key-file", str(tmp_path / "keys"))[1] == ""


def test_a_key_needs_somebody(capsys: pytest.CaptureFixture[str]) -> None:
    assert "TENANT" in refused(capsys)

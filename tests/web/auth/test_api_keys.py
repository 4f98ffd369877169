"""KeyRing: key files, and the keys of the environment."""

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import booleans, dictionaries, lists, sampled_from, text, tuples

from chairlift.core.errors import ConfigError
from chairlift.web.auth.api_keys import MAX_KEY_BYTES, KeyRing, key_line, new_key, read_keys
from chairlift.web.auth.principal import ADMIN, USER, Principal
from support_shares import for_each

USER_KEY, ADMIN_KEY = new_key(), new_key()


def write_and_read_keys(tmp_path: Path, *lines: str, environ: dict[str, str] | None = None) -> KeyRing:
    file = tmp_path / "keys"
    file.write_text("\n".join(lines), encoding="utf-8")
    return read_keys(file, environ or {})


def user_and_admin_ring() -> KeyRing:
    return read_keys(None, {"CHAIRLIFT_API_KEY": USER_KEY, "CHAIRLIFT_ADMIN_KEY": ADMIN_KEY})


def test_new_keys_are_long_and_differ() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(key.startswith("cl-") and len(key) >= 43 and len(key.encode()) <= MAX_KEY_BYTES for key in keys)


def test_a_key_is_found_by_its_line(tmp_path: Path) -> None:
    result = write_and_read_keys(
        tmp_path, "# ours", "", key_line(USER_KEY, "a"), f"  {key_line(ADMIN_KEY, 'ops', admin=True)}  ", "   # end"
    )
    assert result.find(USER_KEY.encode()) == Principal("a")
    assert result.find(ADMIN_KEY.encode()) == Principal("ops", frozenset({ADMIN}))
    for other in (
        b"",
        b"x",
        USER_KEY.encode()[:-1],
        USER_KEY.encode() + b"\n",
        hashlib.sha256(USER_KEY.encode()).digest(),
    ):
        assert result.find(other) is None


def test_the_file_has_no_key_in_it() -> None:
    assert USER_KEY not in key_line(USER_KEY, "a")
    assert key_line(USER_KEY, "a") == f"a sha256:{hashlib.sha256(USER_KEY.encode()).hexdigest()}"


NAMES = sampled_from(["a", "team-1", "x.y_z", "A" * 128, "admin", "sha256"])


@settings(max_examples=25)
@given(dictionaries(text(min_size=1, max_size=8), tuples(NAMES, booleans()), min_size=1, max_size=5))
def test_a_written_file_is_read_back(tmp_path_factory: Any, entries: dict[str, tuple[str, bool]]) -> None:
    lines = [key_line(key, tenant, admin=admin) for key, (tenant, admin) in entries.items()]
    result = write_and_read_keys(tmp_path_factory.getbasetemp(), *lines)
    assert len(result.principals) == len(entries)
    for key, (tenant, admin) in entries.items():
        assert result.find(key.encode()) == Principal(tenant, frozenset({ADMIN if admin else USER}))
    assert result.has_admin == any(admin for _, admin in entries.values())
    assert result.requires_key  # also if all keys are admin keys


VALID_LINE_PATTERN = re.compile(r"\s*(a|admin|0{63,64})+\s+sha256:0{64}(\s+admin)?\s*")


@settings(max_examples=25)
@given(lists(sampled_from(["a ", "sha256:", "0" * 64, "0" * 63, " ", "admin", "a", ":", "\t"]), max_size=6))
def test_a_line_is_one_of_ours_or_refused_by_its_number(tmp_path_factory: Any, parts: list[str]) -> None:
    line = "".join(parts)
    folder = tmp_path_factory.getbasetemp()
    if not line.strip():
        assert len(write_and_read_keys(folder, key_line(USER_KEY, "a"), line).principals) == 1
    elif VALID_LINE_PATTERN.fullmatch(line):
        assert len(write_and_read_keys(folder, key_line(USER_KEY, "a"), line).principals) == 2
    else:
        with pytest.raises(ConfigError, match="line 2"):
            write_and_read_keys(folder, key_line(USER_KEY, "a"), line)


VALID_LINE = key_line(USER_KEY, "a")
INVALID_LINES = {
    "a key itself": f"a {USER_KEY}",
    "no hash": "a",
    "a short hash": VALID_LINE[:-1],
    "a long hash": VALID_LINE + "0",
    "capitals": VALID_LINE.replace("sha256", "SHA256"),
    "another hash": VALID_LINE.replace("sha256", "sha512"),
    "another scope": VALID_LINE + " root",
    "two scopes": VALID_LINE + " admin admin",
    "glued": VALID_LINE + "admin",
    "no tenant": VALID_LINE[2:],
    "a tenant of two words": "b " + VALID_LINE,
    "a long tenant": "a" * 128 + VALID_LINE,
}


@pytest.mark.parametrize("line", INVALID_LINES.values(), ids=INVALID_LINES)
def test_a_wrong_line_is_named_and_its_content_is_not(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match=r"keys, line 3: a key line must be TENANT") as caught:
        write_and_read_keys(tmp_path, VALID_LINE, "# of b", line)
    assert caught.value.details == {"option": "key_file"}
    assert USER_KEY not in str(caught.value)


@for_each("tenant", ["", "a b", "a\n", "a\n#", "a ", "ä", "a" * 129, "a:b", "# a"])
def test_a_tenant_that_cannot_be_one_gets_no_line(tenant: str) -> None:
    with pytest.raises(ConfigError, match="tenant must have 1 to 128") as caught:
        key_line(USER_KEY, tenant)
    assert caught.value.details == {"option": "tenant"}


@pytest.mark.parametrize("content", [b"", b"\n\n# empty\n", None, b"\xff\xfe"])
def test_a_file_without_a_key_is_refused(tmp_path: Path, content: bytes | None) -> None:
    """A typo must not remove the authentication."""
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=str(file)) as caught:
        read_keys(file, {"CHAIRLIFT_API_KEY": USER_KEY})
    assert caught.value.details == {"option": "key_file"}


def test_keys_of_the_environment() -> None:
    assert read_keys(None, {}).principals == {}
    assert read_keys(None, {"CHAIRLIFT_API_KEY": "", "CHAIRLIFT_ADMIN_KEY": ""}).principals == {}
    result = user_and_admin_ring()
    assert result.find(USER_KEY.encode()) == Principal("default")
    assert result.find(ADMIN_KEY.encode()) == Principal("admin", frozenset({ADMIN}))
    with pytest.raises(ConfigError, match="CHAIRLIFT_ADMIN_KEY must differ"):
        read_keys(None, {"CHAIRLIFT_API_KEY": USER_KEY, "CHAIRLIFT_ADMIN_KEY": USER_KEY})


def test_a_file_and_the_environment_are_both_known(tmp_path: Path) -> None:
    result = write_and_read_keys(tmp_path, VALID_LINE, environ={"CHAIRLIFT_ADMIN_KEY": ADMIN_KEY})
    assert result.find(USER_KEY.encode()) == Principal("a")
    assert result.find(ADMIN_KEY.encode()) == Principal("admin", frozenset({ADMIN}))


@pytest.mark.parametrize("key", ["k" * (MAX_KEY_BYTES + 1), " key", "key\n"], ids=["long", "before", "behind"])
def test_a_key_that_no_client_could_give_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(ConfigError, match=r"^CHAIRLIFT_ADMIN_KEY must have at most 512 bytes") as caught:
        read_keys(None, {"CHAIRLIFT_ADMIN_KEY": key})
    assert key.strip() not in caught.value.message


def test_keys_of_the_command_line_are_keys_of_the_default_tenant() -> None:
    ring = read_keys(None, {"CHAIRLIFT_ADMIN_KEY": ADMIN_KEY}, ["one", "two"])
    assert ring.requires_key and ring.has_admin
    assert [ring.find(key) for key in (b"one", b"two", b"three")] == [Principal("default"), Principal("default"), None]
    for invalid in ("", " x", "k" * (MAX_KEY_BYTES + 1)):
        with pytest.raises(ConfigError, match=r"^--api-key must have at most 512 bytes and at least one"):
            read_keys(None, {}, ["one", invalid])
    with pytest.raises(ConfigError, match="CHAIRLIFT_ADMIN_KEY must differ"):
        read_keys(None, {"CHAIRLIFT_ADMIN_KEY": ADMIN_KEY}, [ADMIN_KEY])

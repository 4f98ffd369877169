"""auth.py: key files, and which key may use which path."""

import asyncio
import hashlib
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import booleans, dictionaries, lists, sampled_from, text, tuples

from chairlift.core.errors import ChairliftError, ConfigError, Forbidden, NotFound, Unauthorized
from chairlift.web.auth import ADMIN, MAX_KEY_BYTES, Auth, KeyRing, Principal, key_line, new_key, read_keys

USER, BOSS = new_key(), new_key()
OPEN = frozenset({"/health"})


def ring(tmp_path: Path, *lines: str, environ: dict[str, str] | None = None) -> KeyRing:
    file = tmp_path / "keys"
    file.write_text("\n".join(lines), encoding="utf-8")
    return read_keys(file, environ or {})


def both() -> KeyRing:
    return read_keys(None, {"CHAIRLIFT_API_KEY": USER, "CHAIRLIFT_ADMIN_KEY": BOSS})


# -- key files -----------------------------------------------------------------------------------------------------


def test_new_keys_are_long_and_differ() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(key.startswith("cl-") and len(key) >= 43 and len(key.encode()) <= MAX_KEY_BYTES for key in keys)


def test_a_key_is_found_by_its_line(tmp_path: Path) -> None:
    result = ring(tmp_path, "# ours", "", key_line(USER, "a"), f"  {key_line(BOSS, 'ops', admin=True)}  ", "   # end")
    assert result.find(USER.encode()) == Principal("a")
    assert result.find(BOSS.encode()) == Principal("ops", frozenset({ADMIN}))
    for other in (b"", b"x", USER.encode()[:-1], USER.encode() + b"\n", hashlib.sha256(USER.encode()).digest()):
        assert result.find(other) is None


def test_the_file_has_no_key_in_it() -> None:
    assert USER not in key_line(USER, "a")
    assert key_line(USER, "a") == f"a sha256:{hashlib.sha256(USER.encode()).hexdigest()}"


NAMES = sampled_from(["a", "team-1", "x.y_z", "A" * 128, "admin", "sha256"])


@settings(max_examples=25)
@given(dictionaries(text(min_size=1, max_size=8), tuples(NAMES, booleans()), min_size=1, max_size=5))
def test_a_written_file_is_read_back(tmp_path_factory: Any, entries: dict[str, tuple[str, bool]]) -> None:
    lines = [key_line(key, tenant, admin=admin) for key, (tenant, admin) in entries.items()]
    result = ring(tmp_path_factory.getbasetemp(), *lines)
    assert len(result.principals) == len(entries)
    for key, (tenant, admin) in entries.items():
        assert result.find(key.encode()) == Principal(tenant, frozenset({ADMIN} if admin else ()))
    assert result.has_admin == any(admin for _, admin in entries.values())
    assert result.requires_key  # also where all of its keys are admins'


LINE = re.compile(r"\s*(a|admin|0{63,64})+\s+sha256:0{64}(\s+admin)?\s*")


@settings(max_examples=25)
@given(lists(sampled_from(["a ", "sha256:", "0" * 64, "0" * 63, " ", "admin", "a", ":", "\t"]), max_size=6))
def test_a_line_is_one_of_ours_or_refused_by_its_number(tmp_path_factory: Any, parts: list[str]) -> None:
    line = "".join(parts)
    folder = tmp_path_factory.getbasetemp()
    if not line.strip():
        assert len(ring(folder, key_line(USER, "a"), line).principals) == 1
    elif LINE.fullmatch(line):
        assert len(ring(folder, key_line(USER, "a"), line).principals) == 2
    else:
        with pytest.raises(ConfigError, match="line 2"):
            ring(folder, key_line(USER, "a"), line)


GOOD = key_line(USER, "a")
WRONG = {
    "a key itself": f"a {USER}",
    "no hash": "a",
    "a short hash": GOOD[:-1],
    "a long hash": GOOD + "0",
    "capitals": GOOD.replace("sha256", "SHA256"),
    "another hash": GOOD.replace("sha256", "sha512"),
    "another scope": GOOD + " root",
    "two scopes": GOOD + " admin admin",
    "glued": GOOD + "admin",
    "no tenant": GOOD[2:],
    "a tenant of two words": "b " + GOOD,
    "a long tenant": "a" * 128 + GOOD,
}


@pytest.mark.parametrize("line", WRONG.values(), ids=WRONG)
def test_a_wrong_line_is_named_and_its_content_is_not(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match=r"keys, line 3: must be TENANT") as caught:
        ring(tmp_path, GOOD, "# of b", line)
    assert caught.value.details == {"option": "api_keys"}
    assert USER not in str(caught.value)


@pytest.mark.parametrize("tenant", ["", "a b", "a\n", "a\n#", "a ", "ä", "a" * 129, "a:b", "# a"])
def test_a_tenant_that_cannot_be_one_gets_no_line(tenant: str) -> None:
    with pytest.raises(ConfigError, match="a tenant is 1 to 128") as caught:
        key_line(USER, tenant)
    assert caught.value.details == {"option": "tenant"}


@pytest.mark.parametrize("content", [b"", b"\n\n# empty\n", None, b"\xff\xfe"])
def test_a_file_without_a_key_is_refused(tmp_path: Path, content: bytes | None) -> None:
    """A typo must not remove the authentication."""
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=str(file)) as caught:
        read_keys(file, {"CHAIRLIFT_API_KEY": USER})
    assert caught.value.details == {"option": "api_keys"}


def test_keys_of_the_environment() -> None:
    assert read_keys(None, {}).principals == {}
    assert read_keys(None, {"CHAIRLIFT_API_KEY": "", "CHAIRLIFT_ADMIN_KEY": ""}).principals == {}
    result = both()
    assert result.find(USER.encode()) == Principal("default")
    assert result.find(BOSS.encode()) == Principal("admin", frozenset({ADMIN}))


def test_a_file_and_the_environment_are_both_known(tmp_path: Path) -> None:
    result = ring(tmp_path, GOOD, environ={"CHAIRLIFT_ADMIN_KEY": BOSS})
    assert result.find(USER.encode()) == Principal("a")
    assert result.find(BOSS.encode()) == Principal("admin", frozenset({ADMIN}))


# -- the middleware ------------------------------------------------------------------------------------------------


def through(keys: KeyRing, path: str, *headers: tuple[bytes, bytes], query: bytes = b"") -> Principal:
    """Return the tenant that the application behind the middleware gets."""
    scope = {"type": "http", "path": path, "query_string": query, "headers": list(headers)}
    asyncio.run(Auth(_inside, keys, OPEN)(scope, None, None))  # type: ignore[arg-type]
    return scope["seen"]  # type: ignore[return-value]


async def _inside(scope: Any, receive: Any, send: Any) -> None:
    scope["seen"] = scope["principal"]


def bearer(key: str | bytes, scheme: bytes = b"Bearer") -> tuple[bytes, bytes]:
    return b"authorization", scheme + b" " + (key if isinstance(key, bytes) else key.encode())


def test_a_known_key_is_let_through() -> None:
    assert through(both(), "/v1/models", bearer(USER)) == Principal("default")
    assert through(both(), "/v1/models", bearer(USER, b"bEaReR")) == Principal("default")
    assert through(both(), "/v1/models", bearer(f" {USER} ")) == Principal("default")
    assert through(both(), "/v1/models", bearer(BOSS)) == Principal("admin", frozenset({ADMIN}))


NO_KEY: dict[str, list[tuple[bytes, bytes]]] = {
    "none": [],
    "wrong": [bearer(USER[:-1])],
    "longer": [bearer(USER + "x")],
    "empty": [bearer(b"")],
    "only a scheme": [(b"authorization", b"Bearer")],
    "only a key": [(b"authorization", USER.encode())],
    "basic": [bearer(USER, b"Basic")],
    "two": [bearer(USER), bearer(USER)],
    "a good and a bad one": [bearer(USER), bearer("x")],
    "another header": [(b"x-api-key", USER.encode())],
    "long": [bearer(b"a" * (MAX_KEY_BYTES + 1))],
    "a megabyte": [bearer(b"a" * 1_000_000)],
    "no UTF-8": [bearer(b"\xff\xfe")],
    "the hash": [bearer(hashlib.sha256(USER.encode()).hexdigest())],
    "a JSON web token without a signature": [bearer("eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.")],
}


@pytest.mark.parametrize(
    "path", ["/v1/models", "/", "//health", "/health/", "/HEALTH", "/health/../v1/models", "/admin"]
)
@pytest.mark.parametrize("headers", NO_KEY.values(), ids=NO_KEY)
def test_other_keys_are_rejected(
    path: str, headers: list[tuple[bytes, bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    """18 and 21: default-deny, one sentence for every reason, and no key in the log."""
    caplog.set_level(logging.DEBUG)
    with pytest.raises(Unauthorized, match=r"^a valid API key is needed: Authorization: Bearer KEY$"):
        through(both(), path, *headers, query=f"key={USER}&api_key={USER}".encode())
    assert "refused: " in caplog.text
    assert USER[:-1] not in caplog.text


def test_a_key_can_be_so_long_and_no_longer() -> None:
    longest = "k" * MAX_KEY_BYTES
    assert through(read_keys(None, {"CHAIRLIFT_API_KEY": longest}), "/", bearer(longest)) == Principal("default")
    with pytest.raises(Unauthorized):
        through(read_keys(None, {"CHAIRLIFT_API_KEY": longest}), "/", bearer(longest + "k"))


@pytest.mark.parametrize("key", ["k" * (MAX_KEY_BYTES + 1), " key", "key\n"], ids=["long", "before", "behind"])
def test_a_key_that_no_client_could_give_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(ConfigError, match=r"^CHAIRLIFT_ADMIN_KEY must be at most 512 bytes") as caught:
        read_keys(None, {"CHAIRLIFT_ADMIN_KEY": key})
    assert key.strip() not in caught.value.message


def test_a_file_with_keys_of_admins_alone_closes_everything(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text(key_line(BOSS, "boss", admin=True) + "\n", encoding="utf-8")
    ring = read_keys(file, {})
    with pytest.raises(Unauthorized):
        through(ring, "/v1/models")
    assert through(ring, "/health") == Principal()
    assert through(ring, "/v1/models", bearer(BOSS)).tenant == "boss"


def test_an_open_path_asks_for_nothing() -> None:
    assert through(both(), "/health") == Principal()
    assert through(both(), "/health", bearer("wrong")) == Principal()


def test_without_keys_all_requests_have_no_tenant() -> None:
    assert through(KeyRing(), "/v1/models") == Principal()
    assert through(KeyRing(), "/v1/models", bearer("anything")) == Principal()
    only_admin = read_keys(None, {"CHAIRLIFT_ADMIN_KEY": BOSS})
    assert through(only_admin, "/v1/models") == Principal()


@pytest.mark.parametrize(
    ("keys", "headers", "expected"),
    [
        (KeyRing(), [], NotFound),
        (read_keys(None, {"CHAIRLIFT_API_KEY": USER}), [bearer(USER)], NotFound),
        (both(), [], Unauthorized),
        (both(), [bearer(USER)], Unauthorized),
        (both(), [bearer(USER), bearer(BOSS)], Unauthorized),
        (both(), [bearer(BOSS), (b"origin", b"https://example.com")], Forbidden),
        (both(), [bearer(BOSS), (b"origin", b"null")], Forbidden),
        (both(), [(b"origin", b"null")], Forbidden),
    ],
    ids=["no keys", "no admin", "no key", "no admin's key", "two keys", "a page", "a file's page", "a page, no key"],
)
def test_the_administration_is_for_admins(keys: KeyRing, headers: Any, expected: type[ChairliftError]) -> None:
    """62 and 64."""
    with pytest.raises(expected):
        through(keys, "/admin/drain", *headers)


def test_an_admin_may_administrate() -> None:
    assert through(both(), "/admin/drain", bearer(BOSS)).scopes == {ADMIN}
    only_admin = read_keys(None, {"CHAIRLIFT_ADMIN_KEY": BOSS})
    assert through(only_admin, "/admin/drain", bearer(BOSS)).scopes == {ADMIN}


def test_an_admin_path_is_never_open() -> None:
    scope = {"path": "/admin/state", "headers": []}
    with pytest.raises(Unauthorized):
        asyncio.run(Auth(_inside, both(), frozenset({"/admin/state"}))(scope, None, None))  # type: ignore[arg-type]


def test_keys_can_be_replaced_while_requests_are_served() -> None:
    auth = Auth(_inside, both(), OPEN)
    scope: dict[str, Any] = {"path": "/v1/models", "headers": [bearer(USER)]}
    asyncio.run(auth(scope, None, None))  # type: ignore[arg-type]
    auth.ring = read_keys(None, {"CHAIRLIFT_API_KEY": BOSS})
    with pytest.raises(Unauthorized):
        asyncio.run(auth(scope, None, None))  # type: ignore[arg-type]

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

USER_KEY, ADMIN_KEY = new_key(), new_key()
OPEN = frozenset({"/health"})


def write_and_read_keys(tmp_path: Path, *lines: str, environ: dict[str, str] | None = None) -> KeyRing:
    file = tmp_path / "keys"
    file.write_text("\n".join(lines), encoding="utf-8")
    return read_keys(file, environ or {})


def user_and_admin_ring() -> KeyRing:
    return read_keys(None, {"CHAIRLIFT_API_KEY": USER_KEY, "CHAIRLIFT_ADMIN_KEY": ADMIN_KEY})


# -- key files -----------------------------------------------------------------------------------------------------


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
        assert result.find(key.encode()) == Principal(tenant, frozenset({ADMIN} if admin else ()))
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
    assert caught.value.details == {"option": "api_keys"}
    assert USER_KEY not in str(caught.value)


@pytest.mark.parametrize("tenant", ["", "a b", "a\n", "a\n#", "a ", "ä", "a" * 129, "a:b", "# a"])
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
    assert caught.value.details == {"option": "api_keys"}


def test_keys_of_the_environment() -> None:
    assert read_keys(None, {}).principals == {}
    assert read_keys(None, {"CHAIRLIFT_API_KEY": "", "CHAIRLIFT_ADMIN_KEY": ""}).principals == {}
    result = user_and_admin_ring()
    assert result.find(USER_KEY.encode()) == Principal("default")
    assert result.find(ADMIN_KEY.encode()) == Principal("admin", frozenset({ADMIN}))


def test_a_file_and_the_environment_are_both_known(tmp_path: Path) -> None:
    result = write_and_read_keys(tmp_path, VALID_LINE, environ={"CHAIRLIFT_ADMIN_KEY": ADMIN_KEY})
    assert result.find(USER_KEY.encode()) == Principal("a")
    assert result.find(ADMIN_KEY.encode()) == Principal("admin", frozenset({ADMIN}))


# -- the middleware ------------------------------------------------------------------------------------------------


def send_through(keys: KeyRing, path: str, *headers: tuple[bytes, bytes], query: bytes = b"") -> Principal:
    """Return the principal that the application behind the middleware gets."""
    scope = {"type": "http", "path": path, "query_string": query, "headers": list(headers)}
    asyncio.run(Auth(_inside, keys, OPEN)(scope, None, None))  # type: ignore[arg-type]
    return scope["result"]  # type: ignore[return-value]


async def _inside(scope: Any, receive: Any, send: Any) -> None:
    scope["result"] = scope["principal"]


def bearer(key: str | bytes, scheme: bytes = b"Bearer") -> tuple[bytes, bytes]:
    return b"authorization", scheme + b" " + (key if isinstance(key, bytes) else key.encode())


def test_a_known_key_is_let_through() -> None:
    assert send_through(user_and_admin_ring(), "/v1/models", bearer(USER_KEY)) == Principal("default")
    assert send_through(user_and_admin_ring(), "/v1/models", bearer(USER_KEY, b"bEaReR")) == Principal("default")
    assert send_through(user_and_admin_ring(), "/v1/models", bearer(f" {USER_KEY} ")) == Principal("default")
    assert send_through(user_and_admin_ring(), "/v1/models", bearer(ADMIN_KEY)) == Principal(
        "admin", frozenset({ADMIN})
    )


NO_KEY: dict[str, list[tuple[bytes, bytes]]] = {
    "none": [],
    "wrong": [bearer(USER_KEY[:-1])],
    "longer": [bearer(USER_KEY + "x")],
    "empty": [bearer(b"")],
    "only a scheme": [(b"authorization", b"Bearer")],
    "only a key": [(b"authorization", USER_KEY.encode())],
    "basic": [bearer(USER_KEY, b"Basic")],
    "two": [bearer(USER_KEY), bearer(USER_KEY)],
    "a good and a bad one": [bearer(USER_KEY), bearer("x")],
    "another header": [(b"x-api-key", USER_KEY.encode())],
    "long": [bearer(b"a" * (MAX_KEY_BYTES + 1))],
    "a megabyte": [bearer(b"a" * 1_000_000)],
    "no UTF-8": [bearer(b"\xff\xfe")],
    "the hash": [bearer(hashlib.sha256(USER_KEY.encode()).hexdigest())],
    "a JSON web token without a signature": [bearer("eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.")],
}


@pytest.mark.parametrize(
    "path", ["/v1/models", "/", "//health", "/health/", "/HEALTH", "/health/../v1/models", "/admin"]
)
@pytest.mark.parametrize("headers", NO_KEY.values(), ids=NO_KEY)
def test_other_keys_are_rejected(
    path: str, headers: list[tuple[bytes, bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    """Cases 18 and 21 of the HTTP contract: default deny, and no key in the log.

    The message is the same for all reasons.
    """
    caplog.set_level(logging.DEBUG)
    with pytest.raises(Unauthorized, match=r"^a valid API key is needed: Authorization: Bearer KEY$"):
        send_through(user_and_admin_ring(), path, *headers, query=f"key={USER_KEY}&api_key={USER_KEY}".encode())
    assert "rejected: " in caplog.text
    assert USER_KEY[:-1] not in caplog.text


def test_a_key_can_be_so_long_and_no_longer() -> None:
    longest = "k" * MAX_KEY_BYTES
    assert send_through(read_keys(None, {"CHAIRLIFT_API_KEY": longest}), "/", bearer(longest)) == Principal("default")
    with pytest.raises(Unauthorized):
        send_through(read_keys(None, {"CHAIRLIFT_API_KEY": longest}), "/", bearer(longest + "k"))


@pytest.mark.parametrize("key", ["k" * (MAX_KEY_BYTES + 1), " key", "key\n"], ids=["long", "before", "behind"])
def test_a_key_that_no_client_could_give_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(ConfigError, match=r"^CHAIRLIFT_ADMIN_KEY must have at most 512 bytes") as caught:
        read_keys(None, {"CHAIRLIFT_ADMIN_KEY": key})
    assert key.strip() not in caught.value.message


def test_a_file_with_keys_of_admins_alone_closes_everything(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text(key_line(ADMIN_KEY, "boss", admin=True) + "\n", encoding="utf-8")
    write_and_read_keys = read_keys(file, {})
    with pytest.raises(Unauthorized):
        send_through(write_and_read_keys, "/v1/models")
    assert send_through(write_and_read_keys, "/health") == Principal()
    assert send_through(write_and_read_keys, "/v1/models", bearer(ADMIN_KEY)).tenant == "boss"


def test_an_open_path_asks_for_nothing() -> None:
    assert send_through(user_and_admin_ring(), "/health") == Principal()
    assert send_through(user_and_admin_ring(), "/health", bearer("wrong")) == Principal()


def test_without_keys_all_requests_have_no_tenant() -> None:
    assert send_through(KeyRing(), "/v1/models") == Principal()
    assert send_through(KeyRing(), "/v1/models", bearer("anything")) == Principal()
    only_admin = read_keys(None, {"CHAIRLIFT_ADMIN_KEY": ADMIN_KEY})
    assert send_through(only_admin, "/v1/models") == Principal()


@pytest.mark.parametrize(
    ("keys", "headers", "expected"),
    [
        (KeyRing(), [], NotFound),
        (read_keys(None, {"CHAIRLIFT_API_KEY": USER_KEY}), [bearer(USER_KEY)], NotFound),
        (user_and_admin_ring(), [], Unauthorized),
        (user_and_admin_ring(), [bearer(USER_KEY)], Unauthorized),
        (user_and_admin_ring(), [bearer(USER_KEY), bearer(ADMIN_KEY)], Unauthorized),
        (user_and_admin_ring(), [bearer(ADMIN_KEY), (b"origin", b"https://example.com")], Forbidden),
        (user_and_admin_ring(), [bearer(ADMIN_KEY), (b"origin", b"null")], Forbidden),
        (user_and_admin_ring(), [(b"origin", b"null")], Forbidden),
    ],
    ids=["no keys", "no admin", "no key", "no admin's key", "two keys", "a page", "a file's page", "a page, no key"],
)
def test_the_administration_is_for_admins(keys: KeyRing, headers: Any, expected: type[ChairliftError]) -> None:
    """Cases 62 and 64 of the HTTP contract."""
    with pytest.raises(expected):
        send_through(keys, "/admin/drain", *headers)


def test_an_admin_may_administrate() -> None:
    assert send_through(user_and_admin_ring(), "/admin/drain", bearer(ADMIN_KEY)).scopes == {ADMIN}
    only_admin = read_keys(None, {"CHAIRLIFT_ADMIN_KEY": ADMIN_KEY})
    assert send_through(only_admin, "/admin/drain", bearer(ADMIN_KEY)).scopes == {ADMIN}


def test_an_admin_path_is_never_open() -> None:
    scope = {"path": "/admin/state", "headers": []}
    with pytest.raises(Unauthorized):
        asyncio.run(Auth(_inside, user_and_admin_ring(), frozenset({"/admin/state"}))(scope, None, None))  # type: ignore[arg-type]


def test_keys_can_be_replaced_while_requests_are_served() -> None:
    auth = Auth(_inside, user_and_admin_ring(), OPEN)
    scope: dict[str, Any] = {"path": "/v1/models", "headers": [bearer(USER_KEY)]}
    asyncio.run(auth(scope, None, None))  # type: ignore[arg-type]
    auth.ring = read_keys(None, {"CHAIRLIFT_API_KEY": ADMIN_KEY})
    with pytest.raises(Unauthorized):
        asyncio.run(auth(scope, None, None))  # type: ignore[arg-type]

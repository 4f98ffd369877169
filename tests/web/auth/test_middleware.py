"""AuthMiddleware: which key or token may use which path."""

import asyncio
import hashlib
import logging
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.errors import ChairliftError, Forbidden, NotFound, Unauthorized
from chairlift.web.auth.api_keys import MAX_KEY_BYTES, KeyRing, key_line, new_key, read_keys
from chairlift.web.auth.credentials import Credentials
from chairlift.web.auth.host_check import HostCheck
from chairlift.web.auth.jwt_keys import JWTKeys
from chairlift.web.auth.jwt_verifier import JWTConfig, JWTVerifier, encode_token
from chairlift.web.auth.middleware import AuthMiddleware
from chairlift.web.auth.principal import ADMIN, USER, Principal
from chairlift.web.request_info import request_info
from support_shares import for_each

USER_KEY, ADMIN_KEY = new_key(), new_key()
OPEN = frozenset({"/health"})


def user_and_admin_ring() -> KeyRing:
    return read_keys(None, {"CHAIRLIFT_API_KEY": USER_KEY, "CHAIRLIFT_ADMIN_KEY": ADMIN_KEY})


def send_through(
    keys: KeyRing | Credentials, path: str, *headers: tuple[bytes, bytes], query: bytes = b"", method: str = "GET",
    host_check: HostCheck | None = None, local_paths: frozenset[str] = frozenset(),
) -> Principal:  # fmt: skip
    """Return the principal that the application behind the middleware gets."""
    scope = {"type": "http", "method": method, "path": path, "query_string": query, "headers": list(headers)}
    credentials = Credentials(keys) if isinstance(keys, KeyRing) else keys
    auth = AuthMiddleware(_inside, credentials, OPEN, host_check, local_paths)
    asyncio.run(auth(scope, None, None))  # type: ignore[arg-type]
    return scope["result"]  # type: ignore[return-value]


async def _inside(scope: Any, receive: Any, send: Any) -> None:
    scope["result"] = request_info(scope).principal


def bearer(key: str | bytes, scheme: bytes = b"Bearer") -> tuple[bytes, bytes]:
    return b"authorization", scheme + b" " + (key if isinstance(key, bytes) else key.encode())


def test_a_known_key_is_let_through() -> None:
    assert send_through(user_and_admin_ring(), "/v1/models", bearer(USER_KEY)) == Principal("default")
    assert send_through(user_and_admin_ring(), "/v1/models", bearer(USER_KEY, b"bEaReR")) == Principal("default")
    assert send_through(user_and_admin_ring(), "/v1/models", bearer(f" {USER_KEY} ")) == Principal("default")


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
    "another header": [(b"api-key", USER_KEY.encode())],
    "two keys of Anthropic's header": [(b"x-api-key", USER_KEY.encode())] * 2,
    "a bad one beside a key of Anthropic's header": [bearer("x"), (b"x-api-key", USER_KEY.encode())],
    "long": [bearer(b"a" * (MAX_KEY_BYTES + 1))],
    "a megabyte": [bearer(b"a" * 1_000_000)],
    "no UTF-8": [bearer(b"\xff\xfe")],
    "the hash": [bearer(hashlib.sha256(USER_KEY.encode()).hexdigest())],
    "a JSON web token without a signature": [bearer("eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.")],
}


@pytest.mark.share(30)
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


def test_anthropics_header_has_the_key_where_there_is_no_other() -> None:
    for headers in ([(b"x-api-key", USER_KEY.encode())], [bearer(USER_KEY), (b"x-api-key", b"another")]):
        assert send_through(user_and_admin_ring(), "/v1/messages", *headers).tenant
    assert send_through(user_and_admin_ring(), "/admin/state", (b"x-api-key", ADMIN_KEY.encode())).tenant == "admin"


def test_a_key_can_be_so_long_and_no_longer() -> None:
    longest = "k" * MAX_KEY_BYTES
    assert send_through(read_keys(None, {"CHAIRLIFT_API_KEY": longest}), "/", bearer(longest)) == Principal("default")
    with pytest.raises(Unauthorized):
        send_through(read_keys(None, {"CHAIRLIFT_API_KEY": longest}), "/", bearer(longest + "k"))


def test_a_file_with_keys_of_admins_alone_closes_everything(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text(key_line(ADMIN_KEY, "boss", admin=True) + "\n", encoding="utf-8")
    ring = read_keys(file, {})
    with pytest.raises(Unauthorized):
        send_through(ring, "/v1/models")
    assert send_through(ring, "/health") == Principal()
    assert send_through(ring, "/admin/state", bearer(ADMIN_KEY)).tenant == "boss"


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
        (user_and_admin_ring(), [bearer(USER_KEY)], Forbidden),
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


def test_a_local_path_needs_no_key_where_there_is_none_and_is_for_this_machine_alone() -> None:
    def reads(ring: KeyRing, *headers: tuple[bytes, bytes], path: str = "/admin/live") -> Principal:
        hosts = HostCheck(allowed_hosts=("*",), cors_origins=("*",))
        local_paths = frozenset({"/admin/live"})
        return send_through(ring, path, *headers, host_check=hosts, local_paths=local_paths)

    host = (b"host", b"localhost:8000")
    for headers in ([], [(b"sec-fetch-site", b"same-origin")], [(b"sec-fetch-site", b"none")]):
        assert reads(KeyRing(), host, *headers) == Principal()
    assert reads(KeyRing(), (b"host", b"127.0.0.1:80")) == reads(KeyRing(), (b"host", b"[::1]:80")) == Principal()
    foreign = [
        [host, (b"sec-fetch-site", b"cross-site")], [host, (b"sec-fetch-site", b"same-site")],
        [host, (b"origin", b"http://localhost:8000")], [(b"host", b"rebound.example")], [(b"host", b"10.0.0.1")], [],
        [host, (b"x-forwarded-for", b"10.0.0.1")], [host, (b"forwarded", b"for=10.0.0.1")], [host, (b"via", b"1.1 a")],
        [host, (b"x-forwarded-proto", b"https")], [host, (b"cf-connecting-ip", b"10.0.0.1")],
        [host, (b"host", b"rebound.example")], [(b"host", b"0.0.0.0")], [(b"host", b"localhost.example")],
        [(b"host", b"[::ffff:10.0.0.1]:80")], [(b"host", b"127.0.0.1@rebound.example")], [host, (b"origin", b"null")],
    ]  # fmt: skip
    for headers in foreign:
        with pytest.raises(Forbidden, match=r"at localhost without a proxy; for others set CHAIRLIFT_ADMIN_KEY$"):
            reads(KeyRing(), *headers)
    with pytest.raises(NotFound):
        reads(KeyRing(), host, path="/admin/state")
    with pytest.raises(NotFound):
        reads(read_keys(None, {"CHAIRLIFT_API_KEY": USER_KEY}), host)
    with pytest.raises(Unauthorized):
        reads(read_keys(None, {"CHAIRLIFT_ADMIN_KEY": ADMIN_KEY}), host)


def test_an_admin_path_is_never_open() -> None:
    scope = {"method": "GET", "path": "/admin/state", "headers": []}
    auth = AuthMiddleware(_inside, Credentials(user_and_admin_ring()), frozenset({"/admin/state"}))
    with pytest.raises(Unauthorized):
        asyncio.run(auth(scope, None, None))  # type: ignore[arg-type]


def test_keys_can_be_replaced_while_requests_are_served() -> None:
    auth = AuthMiddleware(_inside, Credentials(user_and_admin_ring()), OPEN)
    scope: dict[str, Any] = {"method": "GET", "path": "/v1/models", "headers": [bearer(USER_KEY)]}
    asyncio.run(auth(scope, None, None))  # type: ignore[arg-type]
    auth.credentials = Credentials(read_keys(None, {"CHAIRLIFT_API_KEY": ADMIN_KEY}))
    with pytest.raises(Unauthorized):
        asyncio.run(auth(scope, None, None))  # type: ignore[arg-type]


@for_each("path", ["/v1/models", "/v1/chat/completions", "/metrics", "/load", "/nowhere", "/admin"])
def test_an_admin_key_is_for_the_admin_routes_alone(path: str) -> None:
    """A good key without the right gets 403, not 401: a client need not look for another spelling of its key."""
    with pytest.raises(Forbidden, match=r"admin keys are for the routes under /admin/$"):
        send_through(user_and_admin_ring(), path, bearer(ADMIN_KEY))


def test_a_user_key_on_an_admin_route_is_forbidden_and_not_unknown() -> None:
    with pytest.raises(Forbidden, match=r"^this route needs an admin key, or a token with the role admin$"):
        send_through(user_and_admin_ring(), "/admin/drain", bearer(USER_KEY))


# -- tokens --------------------------------------------------------------------------------------------------------

SECRET = b"0123456789abcdef0123456789abcdef"
TOKENS = Credentials(user_and_admin_ring(), JWTVerifier(JWTConfig(), JWTKeys.from_secret(SECRET)))


def token(**claims: Any) -> tuple[bytes, bytes]:
    return bearer(encode_token(SECRET, {"exp": 2**40, "sub": "ana", **claims}))


def test_keys_and_tokens_are_both_accepted() -> None:
    assert send_through(TOKENS, "/v1/models", bearer(USER_KEY)) == Principal("default")
    assert send_through(TOKENS, "/v1/models", token()) == Principal("ana")
    assert send_through(TOKENS, "/admin/state", token(roles=["admin"])) == Principal("ana", frozenset({ADMIN}))
    both = token(roles="user admin", tenant="ops")
    for path in ("/v1/models", "/admin/state"):
        assert send_through(TOKENS, path, both) == Principal("ops", frozenset({ADMIN, USER}))


@pytest.mark.parametrize(
    ("path", "roles"),
    [("/v1/models", ["admin"]), ("/admin/state", ["user"]), ("/v1/models", ["guest"]), ("/admin/state", [])],
)
def test_a_token_without_the_role_is_forbidden(path: str, roles: list[str]) -> None:
    with pytest.raises(Forbidden):
        send_through(TOKENS, path, token(roles=roles))


def test_a_rejected_token_gets_the_message_of_every_rejected_key(caplog: pytest.LogCaptureFixture) -> None:
    """Case 55 of the HTTP contract: the reason is in the server's log alone, and the token is not."""
    caplog.set_level(logging.INFO)
    expired = token(exp=1)
    with pytest.raises(Unauthorized, match=r"^a valid API key is needed: Authorization: Bearer KEY$"):
        send_through(TOKENS, "/v1/models", expired)
    assert "rejected: a token: ExpiredSignatureError" in caplog.text and expired[1][7:].decode() not in caplog.text


def test_a_token_is_required_where_only_tokens_are_configured() -> None:
    only_tokens = Credentials(tokens=TOKENS.tokens)
    with pytest.raises(Unauthorized):
        send_through(only_tokens, "/v1/models")
    assert send_through(only_tokens, "/health") == Principal()


# -- host names ----------------------------------------------------------------------------------------------------

EVIL_HOST = (b"host", b"evil.example")
EVIL_PAGE = (b"origin", b"https://evil.example")


def test_without_keys_another_host_name_is_forbidden_and_health_checks_are_not() -> None:
    with pytest.raises(Forbidden, match="--allowed-host"):
        send_through(KeyRing(), "/v1/models", EVIL_HOST)
    assert send_through(KeyRing(), "/health", EVIL_HOST) == Principal()
    assert send_through(KeyRing(), "/v1/models", (b"host", b"localhost:8000")) == Principal()


def test_without_keys_a_post_of_another_sites_page_is_forbidden() -> None:
    with pytest.raises(Forbidden, match="--cors-origin"):
        send_through(KeyRing(), "/v1/completions", (b"host", b"localhost"), EVIL_PAGE, method="POST")


def test_with_keys_names_are_checked_only_if_some_are_given() -> None:
    key = bearer(USER_KEY)
    assert send_through(user_and_admin_ring(), "/v1/completions", EVIL_HOST, EVIL_PAGE, key, method="POST").tenant
    check = HostCheck(["good.example"])
    assert send_through(user_and_admin_ring(), "/v1/models", (b"host", b"good.example"), key, host_check=check).tenant
    with pytest.raises(Forbidden, match="--allowed-host"):
        send_through(user_and_admin_ring(), "/v1/models", EVIL_HOST, key, host_check=check)


def test_an_admin_key_alone_leaves_the_check_on() -> None:
    with pytest.raises(Forbidden, match="--allowed-host"):
        send_through(read_keys(None, {"CHAIRLIFT_ADMIN_KEY": ADMIN_KEY}), "/v1/models", EVIL_HOST)

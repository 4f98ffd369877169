"""Auth: checks API keys, kept as hashes, and their scopes; denies every path but a short open list by default.

A line of a key file is `TENANT sha256:HEX [admin]`; a key's hash is SHA-256 over its UTF-8 text. Keys are long random
strings that cannot be guessed, so an unsalted hash is enough.
"""

import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from chairlift.core.errors import ConfigError, Forbidden, NotFound, Unauthorized
from chairlift.web.body import App, Receive, Scope, Send, all_headers

log = logging.getLogger(__name__)

ADMIN = "admin"
ADMIN_PATHS = "/admin/"
MAX_KEY_BYTES = 512
_LINE = re.compile(r"(?P<tenant>[A-Za-z0-9._-]{1,128})\s+sha256:(?P<hash>[0-9a-f]{64})(?P<admin>\s+admin)?\s*\Z")


@dataclass(frozen=True, slots=True)
class Principal:
    """The client of a request: its tenant and its scopes.

    Attributes:
        tenant: the tenant whose limits apply; "" without keys.
        scopes: additional permissions, as "admin".
    """

    tenant: str = ""
    scopes: frozenset[str] = frozenset()


@dataclass(slots=True)
class KeyRing:
    """The known keys, by their hashes. Safe to replace while requests are served.

    Attributes:
        principals: SHA-256 of a key -> its principal.
        is_closed: whether every path needs a key even if no key is known; true with a key file.
    """

    principals: dict[bytes, Principal] = field(default_factory=dict)
    is_closed: bool = False

    def find(self, key: bytes) -> Principal | None:
        """Return the key's principal, None for an unknown key; compares every hash, in constant time."""
        digest, found = hashlib.sha256(key).digest(), None
        for known, principal in self.principals.items():
            if hmac.compare_digest(known, digest):
                found = principal
        return found

    @property
    def requires_key(self) -> bool:
        """Whether requests need a key: a key without the admin scope is known, or a key file is set."""
        return self.is_closed or any(ADMIN not in principal.scopes for principal in self.principals.values())

    @property
    def has_admin(self) -> bool:
        """Whether any key has the admin scope."""
        return any(ADMIN in principal.scopes for principal in self.principals.values())


def read_keys(file: Path | None, environ: Mapping[str, str]) -> KeyRing:
    """Return the keys of a file, and of CHAIRLIFT_API_KEY and CHAIRLIFT_ADMIN_KEY (plain, not hashed).

    Raises ConfigError that names the invalid line, or for a file that cannot be read or has no key.
    """
    ring = KeyRing()
    for name, principal in (("CHAIRLIFT_API_KEY", Principal("default")), ("CHAIRLIFT_ADMIN_KEY", _admin("admin"))):
        if key := environ.get(name, ""):
            if len(key.encode()) > MAX_KEY_BYTES or key != key.strip():
                raise ConfigError(
                    f"{name} must have at most {MAX_KEY_BYTES} bytes, without white space at its ends",
                    option="api_keys",
                )
            ring.principals[hashlib.sha256(key.encode()).digest()] = principal
    if file is None:
        return ring
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the keys in {file}: {error}", option="api_keys") from None
    found = dict(_entries(file, lines))
    if not found:
        raise ConfigError(f"the key file {file} has no key", option="api_keys")
    ring.principals |= found
    ring.is_closed = True
    return ring


def new_key() -> str:
    """Return a new key with 256 random bits."""
    return f"cl-{secrets.token_urlsafe(32)}"


def key_line(key: str, tenant: str, *, admin: bool = False) -> str:
    """Return the key file's line for this key. Raises ConfigError for an invalid tenant name."""
    line = f"{tenant} sha256:{hashlib.sha256(key.encode()).hexdigest()}{' admin' if admin else ''}"
    match = _LINE.match(line)
    if match is None or match["tenant"] != tenant:
        raise ConfigError(
            f"tenant must have 1 to 128 characters of A-Z, a-z, 0-9 and ._-, got {tenant!r}", option="tenant"
        )
    return line


def _admin(tenant: str) -> Principal:
    return Principal(tenant, frozenset({ADMIN}))


def _entries(file: Path, lines: list[str]) -> Iterable[tuple[bytes, Principal]]:
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.match(line.strip())
        if match is None:
            raise ConfigError(f"{file}, line {number}: a key line must be TENANT sha256:HEX [admin]", option="api_keys")
        tenant = match["tenant"]
        yield bytes.fromhex(match["hash"]), _admin(tenant) if match["admin"] else Principal(tenant)


class Auth:
    """Pass on requests with a valid key, and put their Principal into `scope["principal"]`.

    Attributes:
        ring: the keys; may be replaced at any time.
    """

    def __init__(self, app: App, ring: KeyRing, open_paths: frozenset[str]) -> None:
        self._app = app
        self.ring = ring
        self._open = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Identify the client, and pass the request on."""
        scope["principal"] = self.principal(scope)
        await self._app(scope, receive, send)

    def principal(self, scope: Scope) -> Principal:
        """Return the client's principal for the request's path. Raises Unauthorized, Forbidden, NotFound."""
        path = scope["path"]
        if path.startswith(ADMIN_PATHS):
            if not self.ring.has_admin:
                raise NotFound("there is no such route")
            if all_headers(scope, b"origin"):
                raise Forbidden("the admin routes reject requests from web pages (header Origin)")
            principal = self._authenticate(scope)
            if ADMIN not in principal.scopes:
                raise self._unauthorized("the key is not an admin key")
            return principal
        if path in self._open or not self.ring.requires_key:
            return Principal()
        return self._authenticate(scope)

    def _authenticate(self, scope: Scope) -> Principal:
        values = all_headers(scope, b"authorization")
        if len(values) != 1:
            raise self._unauthorized(f"{len(values)} authorization headers")
        scheme, _, key = values[0].partition(b" ")
        key = key.strip()
        if scheme.lower() != b"bearer":
            raise self._unauthorized("another scheme than Bearer")
        if not 0 < len(key) <= MAX_KEY_BYTES:
            raise self._unauthorized(f"a key of {len(key)} bytes")
        principal = self.ring.find(key)
        if principal is None:
            raise self._unauthorized("an unknown key")
        return principal

    def _unauthorized(self, why: str) -> Unauthorized:
        log.info("rejected: %s", why)
        return Unauthorized("a valid API key is needed: Authorization: Bearer KEY")

"""KeyRing: the known API keys, kept as hashes, and the key file that they are read from.

A line of a key file is `TENANT sha256:HEX [admin]`; a key's hash is SHA-256 over its UTF-8 text. Keys are long random
strings that cannot be guessed, so an unsalted hash is enough.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from chairlift.core.errors import ConfigError
from chairlift.web.auth.principal import ADMIN, USER, Principal

MAX_KEY_BYTES = 512
_LINE = re.compile(r"(?P<tenant>[A-Za-z0-9._-]{1,128})\s+sha256:(?P<hash>[0-9a-f]{64})(?P<admin>\s+admin)?\s*\Z")


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
        return self.is_closed or any(USER in principal.scopes for principal in self.principals.values())

    @property
    def has_admin(self) -> bool:
        """Whether any key has the admin scope."""
        return any(ADMIN in principal.scopes for principal in self.principals.values())


def read_keys(file: Path | None, environ: Mapping[str, str], api_keys: Iterable[str] = ()) -> KeyRing:
    """Return the keys of a file, of `api_keys`, and of CHAIRLIFT_API_KEY and CHAIRLIFT_ADMIN_KEY (plain, not hashed).

    Raises ConfigError that names the invalid line, or for a file that cannot be read or has no key.
    """
    ring = KeyRing()
    plain = [("--api-key", key, Principal("default")) for key in api_keys]
    for name, principal in (("CHAIRLIFT_API_KEY", Principal("default")), ("CHAIRLIFT_ADMIN_KEY", _admin("admin"))):
        plain += [(name, key, principal)] if (key := environ.get(name, "")) else []
    for name, key, principal in plain:
        if not 0 < len(key.encode()) <= MAX_KEY_BYTES or key != key.strip():
            raise ConfigError(
                f"{name} must have at most {MAX_KEY_BYTES} bytes and at least one, without white space at its ends",
                option="api_keys",
            )
        digest = hashlib.sha256(key.encode()).digest()
        if ring.principals.setdefault(digest, principal) != principal:
            raise ConfigError(
                f"{name} must differ from the user keys: an admin key is for the routes under /admin/ alone",
                option="api_keys",
            )
    if file is None:
        return ring
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read key_file {file}: {reason}", option="key_file") from None
    found = dict(_entries(file, lines))
    if not found:
        raise ConfigError(f"key_file {file} has no key", option="key_file")
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
            raise ConfigError(
                f"key_file {file}, line {number}: a key line must be TENANT sha256:HEX [admin]", option="key_file"
            )
        tenant = match["tenant"]
        yield bytes.fromhex(match["hash"]), _admin(tenant) if match["admin"] else Principal(tenant)

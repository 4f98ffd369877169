"""JWTVerifier: checks JSON Web Tokens (RFC 7519) and returns their Principal."""

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jwt

from chairlift.core.errors import ConfigError
from chairlift.web.auth.jwt_keys import HS256, MAX_KEY_ID_CHARS, JWTKeys, is_key_id
from chairlift.web.auth.principal import ADMIN, TENANT_NAME, USER, Principal

MAX_TOKEN_BYTES = 8192
MAX_LEEWAY_SECONDS = 600
REJECTED_HEADERS = frozenset({"crit", "jku", "jwk", "x5u", "x5c", "b64"})
"""Header fields that ask the server to understand an extension, or to use a key that comes with the token."""


_FORM = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.(?P<signature>[A-Za-z0-9_-]*)")
_PATH = re.compile(r"^[/\\~]|(^|[/\\])\.\.?([/\\]|$)|:[/\\]|^file:")
"""A key id that looks like a path or a URL. No key id is ever opened; such a one comes from an attack."""


class InvalidToken(Exception):
    """A token that is not accepted; the text is for the server's log alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JWTConfig:
    """What a token must contain.

    Attributes:
        audience: a value that `aud` must contain; None for tokens without `aud`.
        issuer: the value that `iss` must have; None for any.
        roles_claim: the claim that holds the roles, a list or text separated by spaces. A token without it is a user's.
        tenant_claim: the claim that holds the tenant; a token without it belongs to the tenant of its `sub`.
        leeway: seconds by which clocks may differ.

    A claim inside another one is named with dots: realm_access.roles.
    """

    audience: str | None = None
    issuer: str | None = None
    roles_claim: str = "roles"
    tenant_claim: str = "tenant"
    leeway: float = 30.0

    def __post_init__(self) -> None:
        if not 0 <= self.leeway <= MAX_LEEWAY_SECONDS:
            raise ConfigError(
                f"jwt_leeway must be between 0 and {MAX_LEEWAY_SECONDS} seconds, got {self.leeway:g}",
                option="jwt_leeway",
            )
        for name in ("audience", "issuer", "roles_claim", "tenant_claim"):
            if getattr(self, name) == "":
                raise ConfigError(f"jwt_{name} must not be empty", option=f"jwt_{name}")


@dataclass(frozen=True, slots=True)
class JWTVerifier:
    """Verifies tokens with keys of one kind. Thread-safe; replaced as a whole when keys rotate.

    Attributes:
        config: what a token must contain.
        keys: the keys, and the only algorithm that is accepted.
    """

    config: JWTConfig
    keys: JWTKeys

    def verify(self, token: bytes) -> Principal:
        """Return the principal of a token, without scopes if it has no known role. Raises InvalidToken."""
        if len(token) > MAX_TOKEN_BYTES:
            raise InvalidToken(f"a token of {len(token)} bytes, the limit is {MAX_TOKEN_BYTES}")
        match = _FORM.fullmatch(token)
        if match is None or not _is_canonical(match["signature"]):
            raise InvalidToken("it is not three parts of base64url without padding")
        try:
            claims = self._claims(token.decode("ascii"))
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError, OverflowError) as error:
            raise InvalidToken(f"{type(error).__name__}: {str(error)[:200]}") from None
        return Principal(self._tenant(claims), self._scopes(claims))

    def _claims(self, token: str) -> dict[str, Any]:
        header = jwt.get_unverified_header(token)
        if rejected := REJECTED_HEADERS & header.keys():
            raise InvalidToken(f"the header has {', '.join(sorted(rejected))}")
        algorithm, config = self.keys.algorithm, self.config
        if header.get("alg") != algorithm:
            raise InvalidToken(f"the algorithm is {str(header.get('alg'))[:40]!r}, this server uses {algorithm}")
        options: Any = {"require": ["exp"], "verify_aud": True, "verify_iss": config.issuer is not None}
        claims: dict[str, Any] = jwt.decode(
            token, self._key(header), algorithms=[algorithm], audience=config.audience,
            issuer=config.issuer, leeway=config.leeway, options=options,
        )  # fmt: skip
        return claims

    def _key(self, header: Mapping[str, Any]) -> Any:
        """Return the key that the header's `kid` names. Raises InvalidToken.

        A token without `kid` fits the key without an id, and a single key. A `kid` must be the id of a key; only where
        the single key has no id, any `kid` fits that is not a path.
        """
        keys = self.keys.by_id
        if "kid" not in header:
            if None not in keys and len(keys) > 1:
                raise InvalidToken("it has no kid, and several keys have ids")
            return keys[None] if None in keys else next(iter(keys.values()))
        key_id = header["kid"]
        if not is_key_id(key_id):
            raise InvalidToken(f"kid is no text of 1 to {MAX_KEY_ID_CHARS} printable characters")
        if key_id in keys:
            return keys[key_id]
        if len(keys) > 1 or None not in keys or _PATH.search(key_id):
            raise InvalidToken(f"no key has the id {key_id[:80]!r}")
        return keys[None]

    def _scopes(self, claims: Mapping[str, Any]) -> frozenset[str]:
        name = self.config.roles_claim
        roles = _find(claims, name, USER)
        role_names = roles.split() if isinstance(roles, str) else roles
        if not isinstance(role_names, list) or not all(isinstance(role, str) for role in role_names):
            raise InvalidToken(f"{name} is neither a text nor a list of texts")
        return frozenset({ADMIN, USER}.intersection(role_names))

    def _tenant(self, claims: Mapping[str, Any]) -> str:
        """Return the tenant; a subject that is not a tenant's name is one by its hash."""
        tenant, subject = _find(claims, self.config.tenant_claim, None), claims.get("sub")
        if tenant is not None:
            if not isinstance(tenant, str) or not TENANT_NAME.fullmatch(tenant):
                raise InvalidToken(f"{self.config.tenant_claim} is not 1 to 128 characters of A-Z, a-z, 0-9 and ._-")
            return tenant
        if not isinstance(subject, str) or not subject:
            return "default"
        if TENANT_NAME.fullmatch(subject):
            return subject
        return f"sub-{hashlib.sha256(subject.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def _is_canonical(part: bytes) -> bool:
    """Return whether base64url text has no unused bits that are set: a signature has one spelling."""
    padded = part + b"=" * (-len(part) % 4)
    try:
        return base64.urlsafe_b64encode(base64.urlsafe_b64decode(padded)) == padded
    except ValueError:
        return False


def is_token(text: bytes) -> bool:
    """Return whether the text of an Authorization header is a JWT, not an API key: three parts, a JSON header first."""
    return text.startswith(b"eyJ") and text.count(b".") == 2


def encode_token(secret: bytes, claims: Mapping[str, Any]) -> str:
    """Return an HS256 token with these claims."""
    return jwt.encode(dict(claims), secret, algorithm=HS256)


def _find(claims: Mapping[str, Any], name: str, default: Any) -> Any:
    """Return a claim by its name, or by its path of names with dots between them."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return default
        found = found[part]
    return found

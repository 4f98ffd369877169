"""JWTKeys: the keys that verify tokens, all for one algorithm, read from a secret or a JWKS file.

The keys of the operator decide the algorithm, never the token: a secret allows HS256, an RSA key RS256, an EC key on
P-256 ES256. All keys are of one kind (RFC 8725, sections 3.1 and 3.2).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_der_public_key

from chairlift.core.errors import ConfigError

MIN_SECRET_BYTES = 32
"""Bytes; HMAC with SHA-256 needs a key of at least the hash's size (RFC 7518, section 3.2)."""

MIN_RSA_BITS = 2048
MAX_FILE_BYTES = 1_000_000
MAX_KEY_ID_CHARS = 256
"""Characters of a `kid`, in tokens and JWKS files."""

HS256, RS256, ES256 = "HS256", "RS256", "ES256"
ALGORITHM_OF_KEY_TYPE: dict[tuple[Any, Any], str] = {("RSA", None): RS256, ("EC", "P-256"): ES256}
PUBLIC_KEY_PREFIXES = (b"-----BEGIN ", b"ssh-", b"ecdsa-", b'{"keys"', b'{"kty"')
"""How texts begin that hold a public key or certificate (PEM, OpenSSH, JWK), or a key pair."""


@dataclass(frozen=True, slots=True)
class JWTKeys:
    """Keys of one kind.

    Attributes:
        algorithm: the only algorithm that they verify.
        by_id: key id -> key; the id None is that of a key without one.
    """

    algorithm: str
    by_id: Mapping[str | None, Any] = field(repr=False)

    @classmethod
    def from_secret(cls, secret: bytes) -> "JWTKeys":
        """Return the key of HS256 tokens."""
        return cls(HS256, {None: secret})

    @classmethod
    def from_jwks(cls, file: Path, expected_algorithm: str | None = None) -> "JWTKeys":
        """Return the public keys of a JWKS file (RFC 7517); keys for encryption are left out.

        Raises ConfigError that names the file and the key for a file that cannot be read, without a usable key, with a
        private or symmetric key, with keys of several kinds, or of another kind than expected.
        """
        keys: dict[str | None, Any] = {}
        algorithms: set[str] = set()
        for number, entry in enumerate(_read_jwks(file)):
            at = f"{file}: keys[{number}]"
            if entry.get("use", "sig") != "sig":
                continue
            key_id = entry.get("kid")
            if not isinstance(key_id, str | None) or key_id in keys:
                raise _jwks_error(f"{at} needs a `kid` of its own, got {str(key_id)[:80]!r}")
            if key_id is not None and not is_key_id(key_id):
                raise _jwks_error(
                    f"{at} needs a `kid` of 1 to {MAX_KEY_ID_CHARS} printable characters, got {key_id[:80]!r}"
                )
            algorithm = _algorithm(entry, at)
            algorithms.add(algorithm)
            keys[key_id] = _public_key(entry, algorithm, at)
        if not keys:
            raise _jwks_error(f"{file} has no key for signatures")
        if len(algorithms) > 1:
            raise _jwks_error(f"{file} has keys for {' and '.join(sorted(algorithms))}; use keys of one kind")
        algorithm = algorithms.pop()
        if expected_algorithm not in (None, algorithm):
            raise ConfigError(
                f"jwt_algorithm is {expected_algorithm}, but the keys in {file} are for {algorithm}",
                option="jwt_algorithm",
            )
        return cls(algorithm, keys)


def is_key_id(value: Any) -> bool:
    """Return whether a value can be the id of a key: a text of printable characters."""
    return isinstance(value, str) and 0 < len(value) <= MAX_KEY_ID_CHARS and value.isprintable()


def read_secret(file: Path, option: str = "jwt_secret_file") -> bytes:
    """Return the secret in a file, without the newline at its end. Raises ConfigError."""
    return check_secret(_read(file, option).removesuffix(b"\n").removesuffix(b"\r"), f"{option} {file}", option)


def check_secret(secret: bytes, name: str, option: str = "jwt_secret") -> bytes:
    """Return the secret. Raises ConfigError for one that is too short, or that is a public key."""
    if secret.lstrip().startswith(PUBLIC_KEY_PREFIXES) or _is_der_public_key(secret) or _is_jwk(secret):
        raise ConfigError(
            f"{name} is a public key or a key pair, which HS256 cannot use; use a random secret, or a JWKS file",
            option=option,
        )
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigError(f"{name} has {len(secret)} bytes, HS256 needs at least {MIN_SECRET_BYTES}", option=option)
    return secret


def _is_der_public_key(secret: bytes) -> bool:
    try:
        load_der_public_key(secret)
    except (ValueError, UnsupportedAlgorithm):
        return False
    return True


def _is_jwk(secret: bytes) -> bool:
    """Return whether the secret is a key or a set of keys as JSON (RFC 7517)."""
    try:
        content = json.loads(secret)
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and not content.keys().isdisjoint(("keys", "kty"))


def _read(file: Path, option: str) -> bytes:
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {option} {file}: {error.strerror}", option=option) from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"{file} has more than {MAX_FILE_BYTES} bytes, the limit of a key file", option=option)
    return content


def _jwks_error(message: str) -> ConfigError:
    return ConfigError(f"jwt_jwks_file {message}", option="jwt_jwks_file")


def _read_jwks(file: Path) -> list[dict[str, Any]]:
    try:
        content = json.loads(_read(file, "jwt_jwks_file"))
    except (ValueError, RecursionError) as error:
        raise _jwks_error(f"{file} is not JSON: {error}") from None
    entries = content.get("keys") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise _jwks_error(f"{file} is no JWKS: it needs a list `keys` of objects")
    return entries


def _algorithm(entry: Mapping[str, Any], at: str) -> str:
    kind = entry.get("kty")
    algorithm = ALGORITHM_OF_KEY_TYPE.get((str(kind), str(entry.get("crv")) if kind == "EC" else None))
    if algorithm is None:
        raise _jwks_error(f"{at} is neither an RSA key nor an EC key on P-256")
    if entry.get("alg", algorithm) != algorithm:
        raise _jwks_error(f"{at} is for {str(entry['alg'])[:40]!r}, only {algorithm} is supported")
    if "d" in entry:
        raise _jwks_error(f"{at} holds a private key; the server needs public keys alone")
    return algorithm


def _public_key(entry: Mapping[str, Any], algorithm: str, at: str) -> Any:
    try:
        key = jwt.PyJWK.from_dict(dict(entry), algorithm=algorithm).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError) as error:
        raise _jwks_error(f"{at} is not a valid key: {error}") from None
    if algorithm == RS256 and key.key_size < MIN_RSA_BITS:
        raise _jwks_error(f"{at} has {key.key_size} bits, RS256 needs at least {MIN_RSA_BITS}")
    return key

"""Credentials: the API keys and tokens that a server accepts; CredentialSources: the files that they are read from."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from chairlift.core.errors import ConfigError
from chairlift.web.auth.api_keys import MAX_KEY_BYTES, KeyRing, read_keys
from chairlift.web.auth.jwt_keys import HS256, JWTKeys, check_secret, read_secret
from chairlift.web.auth.jwt_verifier import InvalidToken, JWTConfig, JWTVerifier, is_token
from chairlift.web.auth.principal import Principal

SECRET_VARIABLE = "CHAIRLIFT_JWT_SECRET"


class InvalidCredential(Exception):
    """A key or token that is not accepted; the text is for the server's log alone."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The keys and tokens that a server accepts. Replaced as a whole when they are read again.

    Attributes:
        keys: the API keys.
        tokens: verifies JSON Web Tokens; None where they are not accepted.
    """

    keys: KeyRing = field(default_factory=KeyRing)
    tokens: JWTVerifier | None = None

    @property
    def are_required(self) -> bool:
        """Whether requests need a key or a token."""
        return self.tokens is not None or self.keys.requires_key

    @property
    def has_admin(self) -> bool:
        """Whether an admin key is known, or a token can have the role admin."""
        return self.tokens is not None or self.keys.has_admin

    def authenticate(self, credential: bytes) -> Principal:
        """Return the principal of a key or token. Raises InvalidCredential."""
        if 0 < len(credential) <= MAX_KEY_BYTES and (principal := self.keys.find(credential)) is not None:
            return principal
        if self.tokens is None or not is_token(credential):
            raise InvalidCredential(f"an unknown key of {len(credential)} bytes")
        try:
            return self.tokens.verify(credential)
        except InvalidToken as error:
            raise InvalidCredential(f"a token: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialSources:
    """The files from which keys are read, and what a token must contain.

    Attributes:
        key_file: the file of API keys.
        jwt_secret_file: the file of the secret that signs HS256 tokens.
        jwt_jwks_file: the file of the public keys that verify RS256 or ES256 tokens.
        jwt_algorithm: the algorithm that the keys must be for; None takes that of the keys.
        token_config: what a token must contain.
    """

    key_file: Path | None = None
    jwt_secret_file: Path | None = None
    jwt_jwks_file: Path | None = None
    jwt_algorithm: str | None = None
    token_config: JWTConfig = field(default_factory=JWTConfig)

    def __post_init__(self) -> None:
        if self.jwt_secret_file is not None and self.jwt_jwks_file is not None:
            raise ConfigError(
                "jwt_secret_file and jwt_jwks_file exclude each other: tokens have keys of one kind",
                option="jwt_jwks_file",
            )
        if self.jwt_secret_file is not None:
            self._check_symmetric()
        elif self.jwt_jwks_file is not None and self.jwt_algorithm == HS256:
            raise ConfigError(
                "jwt_algorithm HS256 needs a secret in jwt_secret_file; the public keys in jwt_jwks_file are no secret",
                option="jwt_algorithm",
            )

    def files(self) -> Iterator[tuple[Path, str]]:
        """Yield each file and the name of its setting."""
        for name in ("key_file", "jwt_secret_file", "jwt_jwks_file"):
            if (file := getattr(self, name)) is not None:
                yield file, name

    def read(self, environ: Mapping[str, str], api_keys: Iterable[str] = ()) -> Credentials:
        """Read the files, and the variables with keys and the secret; add `api_keys`. Raises ConfigError."""
        token_keys = self._read_token_keys(environ.get(SECRET_VARIABLE, "").encode("utf-8", "surrogateescape"))
        return Credentials(
            read_keys(self.key_file, environ, api_keys),
            None if token_keys is None else JWTVerifier(self.token_config, token_keys),
        )

    def _read_token_keys(self, secret: bytes) -> JWTKeys | None:
        for file, name in ((self.jwt_secret_file, "jwt_secret_file"), (self.jwt_jwks_file, "jwt_jwks_file")):
            if secret and file is not None:
                raise ConfigError(f"{name} and {SECRET_VARIABLE} exclude each other", option=name)
        if self.jwt_jwks_file is not None:
            return JWTKeys.from_jwks(self.jwt_jwks_file, self.jwt_algorithm)
        if self.jwt_secret_file is not None:
            return JWTKeys.from_secret(read_secret(self.jwt_secret_file))
        if secret:
            self._check_symmetric()
            return JWTKeys.from_secret(check_secret(secret, SECRET_VARIABLE))
        for name in self._token_settings():
            raise ConfigError(f"{name} needs jwt_secret_file, jwt_jwks_file or {SECRET_VARIABLE}", option=name)
        return None

    def _token_settings(self) -> Iterator[str]:
        """Yield the names of the settings of tokens that are not at their defaults."""
        if self.jwt_algorithm is not None:
            yield "jwt_algorithm"
        default = JWTConfig()
        for each in fields(JWTConfig):
            if getattr(self.token_config, each.name) != getattr(default, each.name):
                yield f"jwt_{each.name}"

    def _check_symmetric(self) -> None:
        if self.jwt_algorithm not in (None, HS256):
            raise ConfigError(
                f"jwt_algorithm {self.jwt_algorithm} needs public keys in jwt_jwks_file, not a secret",
                option="jwt_algorithm",
            )

"""`chairlift token`: creates a JSON Web Token (HS256) that a server with the same secret accepts."""

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chairlift.cli.console import Console
from chairlift.cli.settings.resolve_settings import process_environment, resolve_group
from chairlift.cli.settings.service_settings import TOKEN_COMMAND
from chairlift.core.errors import ConfigError
from chairlift.web.auth.credentials import SECRET_VARIABLE
from chairlift.web.auth.jwt_keys import check_secret, read_secret
from chairlift.web.auth.jwt_verifier import JWTConfig, encode_token
from chairlift.web.auth.principal import TENANT_NAME, USER

MAX_LIFETIME_SECONDS = 3650 * 86_400


def run(arguments: argparse.Namespace) -> int:
    """Create a token and print it; returns the exit code. Raises ConfigError."""
    environ = process_environment()
    options = resolve_group(TOKEN_COMMAND, arguments, environ)
    names = ("audience", "issuer", "roles_claim", "tenant_claim")
    config = JWTConfig(**{name: options[f"jwt_{name}"] for name in names if f"jwt_{name}" in options})
    claims = _claims(arguments, config, int(time.time()))
    token = encode_token(_secret(options.get("jwt_secret_file"), environ), claims)
    expires_at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(claims["exp"]))
    Console(quiet=arguments.quiet).print_line(f"the token expires at {expires_at}")
    print(token)
    return 0


def _claims(arguments: argparse.Namespace, config: JWTConfig, now: int) -> dict[str, Any]:
    if not TENANT_NAME.fullmatch(arguments.tenant):
        raise ConfigError(
            f"tenant must have 1 to 128 characters of A-Z, a-z, 0-9 and ._-, got {arguments.tenant!r}", option="tenant"
        )
    if not 1 <= arguments.lifetime <= MAX_LIFETIME_SECONDS:
        raise ConfigError(
            f"--lifetime must be between 1 second and {MAX_LIFETIME_SECONDS // 86_400} days, got "
            f"{arguments.lifetime} seconds", option="lifetime",
        )  # fmt: skip
    claims = {
        "sub": arguments.tenant, config.tenant_claim: arguments.tenant, config.roles_claim: arguments.role or [USER],
        "iat": now, "exp": now + arguments.lifetime,
    }  # fmt: skip
    optional = {"aud": config.audience, "iss": config.issuer}
    return claims | {name: value for name, value in optional.items() if value is not None}


def _secret(file: str | None, environ: Mapping[str, str]) -> bytes:
    variable = environ.get(SECRET_VARIABLE, "").encode("utf-8", "surrogateescape")
    if file and variable:
        raise ConfigError(f"jwt_secret_file and {SECRET_VARIABLE} exclude each other", option="jwt_secret_file")
    if file:
        return read_secret(Path(file))
    if not variable:
        raise ConfigError(f"a token needs the server's secret: set --jwt-secret-file or {SECRET_VARIABLE}")
    return check_secret(variable, SECRET_VARIABLE)

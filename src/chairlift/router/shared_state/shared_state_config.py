"""SharedStateConfig: the settings of the state that routers share."""

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from chairlift.core.errors import ConfigError
from chairlift.router.shared_state.redis_url import RedisTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedStateConfig:
    """Where the shared state is.

    Attributes:
        url: URL of Redis or its Sentinels; "" keeps the state in memory.
        password_file: file with the password of Redis; read again for each connection.
        sentinel_password_file: file with the password of the Sentinels; read again for each connection.
        tls_ca: PEM file of the CAs that sign the servers' certificates; None for those of the system.
    """

    url: str = field(default="", repr=False)
    password_file: Path | None = None
    sentinel_password_file: Path | None = None
    tls_ca: Path | None = None

    def __post_init__(self) -> None:
        files = {
            "shared_state_password_file": self.password_file,
            "shared_state_sentinel_password_file": self.sentinel_password_file,
            "shared_state_tls_ca": self.tls_ca,
        }
        for option, file in files.items():
            if file is not None and not self.url:
                raise ConfigError(f"{option} needs shared_state, the URL of Redis", option=option)
        has_tls = bool(self.url) and self.target().has_tls
        if self.tls_ca is not None and not has_tls:
            raise ConfigError("shared_state_tls_ca needs a URL with TLS: rediss://", option="shared_state_tls_ca")

    def target(self) -> RedisTarget:
        """Return the server that the URL names. Raises ConfigError."""
        return RedisTarget.parse(
            self.url, password_file=self.password_file, sentinel_password_file=self.sentinel_password_file
        )

    def check_files(self) -> None:
        """Raise ConfigError for a file that cannot be used."""
        if not self.url:
            return
        target = self.target()
        target.read_password()
        target.read_sentinel_password()
        if self.tls_ca is not None:
            try:
                ssl.create_default_context(cafile=self.tls_ca)
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                raise ConfigError(
                    f"cannot read shared_state_tls_ca {self.tls_ca}: {reason}", option="shared_state_tls_ca"
                ) from None

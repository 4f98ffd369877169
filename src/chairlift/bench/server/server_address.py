"""Addresses of servers, read from a URL once and checked."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from chairlift.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is.

    Attributes:
        scheme: http or https.
        host: a name or an address, without brackets.
        port: always a number.
        base: path before /v1; "" or /something.
    """

    scheme: str
    host: str
    port: int
    base: str

    @classmethod
    def of(cls, url: str) -> "Address":
        """Read a URL, with or without /v1 at its end. Raises ConfigError."""
        try:
            told = urlsplit(url)
            port, host = told.port, (told.hostname or "").encode("idna").decode()
        except ValueError:
            raise ConfigError(f"this is no address: {url!r}", option="url") from None
        if told.scheme not in ("http", "https") or not host:
            raise ConfigError(f"an address begins with http:// or https://, got {url!r}", option="url")
        if told.query or told.fragment or not (told.path.isascii() and told.path.isprintable()) or " " in told.path:
            raise ConfigError(f"an address has a path at most, got {url!r}", option="url")
        if told.username is not None or told.password is not None:
            raise ConfigError("a key does not belong into the address; see CHAIRLIFT_API_KEY", option="url")
        base = told.path.rstrip("/").removesuffix("/v1")
        return cls(told.scheme, host, port or (443 if told.scheme == "https" else 80), base)

    @property
    def authority(self) -> str:
        """Host and port as a request names them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """For people."""
        return f"{self.scheme}://{self.authority}{self.base}"

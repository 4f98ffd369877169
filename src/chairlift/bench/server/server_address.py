"""Address: scheme, host, port and base path of a server, parsed from a URL."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from chairlift.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server.

    Attributes:
        scheme: http or https.
        host: a name or an IP address, without brackets.
        port: the port number, by default that of the scheme.
        base: the path before /v1; "" or /something.
    """

    scheme: str
    host: str
    port: int
    base: str

    @classmethod
    def of(cls, url: str) -> "Address":
        """Parse a URL, with or without /v1 at its end.

        Raises ConfigError for an invalid one.
        """
        try:
            parts = urlsplit(url)
            port, host = parts.port, (parts.hostname or "").encode("idna").decode()
        except ValueError:
            raise ConfigError(f"--url is not a valid URL: {url!r}", option="url") from None
        if parts.scheme not in ("http", "https") or not host:
            raise ConfigError(f"--url must begin with http:// or https:// and name a host, got {url!r}", option="url")
        if (
            parts.query
            or parts.fragment
            or not (parts.path.isascii() and parts.path.isprintable())
            or " " in parts.path
        ):
            raise ConfigError(f"--url must have nothing after its path, got {url!r}", option="url")
        if parts.username is not None or parts.password is not None:
            raise ConfigError("--url must not contain a key; set CHAIRLIFT_API_KEY instead", option="url")
        base = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.scheme, host, port or (443 if parts.scheme == "https" else 80), base)

    @property
    def authority(self) -> str:
        """Host and port as in the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL for messages and reports."""
        return f"{self.scheme}://{self.authority}{self.base}"

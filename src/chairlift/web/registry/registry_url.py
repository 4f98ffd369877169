"""RegistryURL: the parts of a URL that names a registry, such as etcd://10.0.0.5:2379/chairlift/replicas?tls=true."""

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from chairlift.core.errors import ConfigError
from chairlift.observability.url_check_and_redaction import without_user_info

TLS_OPTIONS = ("tls", "ca_file", "cert_file", "key_file")
"""Options of every registry that is reached by HTTP."""

MAX_PORT = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryURL:
    """A URL `scheme://host:port[,host:port...]/path?option=value`.

    Attributes:
        text: the URL as the user wrote it.
        scheme: etcd, consul, dns, dns+srv, kubernetes or file.
        hosts: hosts with their ports, in brackets where the host is an IPv6 address.
        path: path without slashes at its ends, percent signs decoded.
        options: options after the question mark.
    """

    text: str
    scheme: str
    hosts: tuple[str, ...]
    path: str
    options: Mapping[str, str]

    def require_one_host(self) -> str:
        """Return the only host. Raises ConfigError for several."""
        if len(self.hosts) != 1:
            raise ConfigError(f"{self.text!r} has {len(self.hosts)} hosts, {self.scheme} takes one")
        return self.hosts[0]

    def base_urls(self) -> tuple[str, ...]:
        """Return the HTTP base URL of each host."""
        scheme = "https" if self.is_tls else "http"
        return tuple(f"{scheme}://{host}" for host in self.hosts)

    @property
    def is_tls(self) -> bool:
        """Whether the registry is reached over TLS. Raises ConfigError for a value that is neither true nor false."""
        text = self.options.get("tls", "true" if "ca_file" in self.options else "false").lower()
        if text not in {"true", "false"}:
            raise ConfigError(f"the option tls of {self.text!r} must be true or false, got {text!r}")
        return text == "true"

    def file(self, option: str) -> Path | None:
        """Return the path of a file that an option names, or None without the option."""
        text = self.options.get(option)
        return None if text is None else Path(text).expanduser()

    def seconds(self, option: str, default: float, *, least: float, most: float) -> float:
        """Return an option's seconds. Raises ConfigError for a value that is not a number or not within its limits."""
        text = self.options.get(option)
        try:
            value = default if text is None else float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise ConfigError(
                f"the option {option} of {self.text!r} must be seconds between {least:g} and {most:g}, got {text!r}"
            )
        return value


def parse_registry_url(text: str, *, options: Collection[str], default_port: int | None, form: str) -> RegistryURL:
    """Parse a registry's URL.

    `options` are the names that it may have after the question mark, `default_port` is that of a host without one
    (None: each host needs a port), and `form` is an example for messages. Raises ConfigError with what is wrong.
    """
    shown = without_user_info(text)
    place = shown.partition("?")[0]  # an option that is not known may be a password
    try:
        parts = urlsplit(text)
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise ConfigError(f"{shown!r} is no URL: {error}; it should look like {form}") from None
    if not parts.scheme or not parts.netloc or parts.fragment or "@" in parts.netloc:
        raise ConfigError(f"{shown!r} should look like {form}")
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in options:
            similar = difflib.get_close_matches(name, sorted(options), n=1)
            hint = f"did you mean {similar[0]}?" if similar else f"the options are {', '.join(sorted(options))}"
            raise ConfigError(f"{place!r} has the unknown option {name!r}; {hint}")
        if name in found:
            raise ConfigError(f"{place!r} has the option {name!r} twice; remove one of them")
        if not value:
            raise ConfigError(f"the option {name!r} of {place!r} is empty")
        found[name] = value
    hosts = tuple(_host_with_port(host, default_port, text, form) for host in parts.netloc.split(","))
    return RegistryURL(
        text=text, scheme=parts.scheme, hosts=hosts, path=unquote(parts.path).strip("/"), options=found,
    )  # fmt: skip


def _host_with_port(host: str, default_port: int | None, text: str, form: str) -> str:
    try:
        parts = urlsplit(f"//{host}")
        port = parts.port if parts.port is not None else default_port
    except ValueError as error:
        raise ConfigError(f"{text!r} has a host that is none: {host!r}: {error}") from None
    if not parts.hostname:
        raise ConfigError(f"{text!r} has an empty host; it should look like {form}")
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    if port is None:
        raise ConfigError(f"{text!r} has no port after the host {name}; it should look like {form}")
    if not 0 < port <= MAX_PORT:
        raise ConfigError(f"the port of {name} in {text!r} must be between 1 and {MAX_PORT}, got {port}")
    return f"{name}:{port}"

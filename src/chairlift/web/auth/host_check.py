"""HostCheck: rejects requests that a web page of another site sends to a server without keys.

A page can rebind its own DNS name to this machine's address: then the header Host has the page's name. Or it can send a
POST with a simple content type, for which browsers ask no permission: then Origin or Sec-Fetch-Site name another site.
"""

import ipaddress
import re
import socket
from collections.abc import Iterable

from chairlift.core.errors import ConfigError, Forbidden
from chairlift.web.body import Scope, all_headers, header

LOCAL_NAMES = frozenset({"localhost", "host.docker.internal", "host.containers.internal"})
"""Names that mean this machine, the last two inside its containers. No public DNS server has them."""

PROXY_HEADERS = (
    b"forwarded", b"x-forwarded-", b"x-real-ip", b"via", b"cf-connecting-ip", b"x-original-", b"x-client-ip",
)  # fmt: skip
"""What the name of a header begins with that a proxy adds, if it says that it passes a request on."""

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
MAX_SHOWN_CHARS = 100
_HOST = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]{0,5})?")


_ALLOWED_HOST = re.compile(r"\*|(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s?#@]+")


def check_allowed_host(name: str) -> None:
    """Raise ConfigError for an allowed host that no header Host can have, such as one with a port."""
    if _ALLOWED_HOST.fullmatch(name) is None and _parse_address(name) is None:
        raise ConfigError(
            f"allowed_hosts must be a name or an address without scheme and port, as proxy.example.com, *.example.com "
            f"or *, got {name[:MAX_SHOWN_CHARS]!r}", option="allowed_hosts",
        )  # fmt: skip


def check_origin(origin: str) -> None:
    """Raise ConfigError for an origin that no header Origin can have, such as one with a path."""
    if _ORIGIN.fullmatch(origin) is None:
        raise ConfigError(
            f"cors_origins must be a scheme and a host without a path, as https://app.example.com, or *, "
            f"got {origin[:MAX_SHOWN_CHARS]!r}", option="cors_origins",
        )  # fmt: skip


class HostCheck:
    """Checks the headers Host, Origin and Sec-Fetch-Site."""

    def __init__(
        self, allowed_hosts: Iterable[str] = (), own_names: Iterable[str] = (), cors_origins: Iterable[str] = ()
    ) -> None:
        """Create the check.

        `allowed_hosts` are names in addition to this machine's; *.example.com is every name below example.com, and * is
        any name. `own_names` are those of the listen address. Pages of `cors_origins` may send requests; * is any page.
        """
        allowed = {name.lower().rstrip(".") for name in allowed_hosts}
        host_name = socket.gethostname().lower()
        short_name = host_name.partition(".")[0]
        own = {name.lower() for name in own_names}
        self.is_explicit = bool(allowed)
        self._names = LOCAL_NAMES | allowed | own | {host_name, short_name, f"{short_name}.local"}
        self._suffixes = (".localhost", *(name[1:] for name in allowed if name.startswith("*.")))
        self._origins = frozenset(cors_origins)

    def check_host(self, scope: Scope) -> None:
        """Raise Forbidden if a header Host has a name or an address that is not this server's."""
        if "*" in self._names:
            return
        for value in all_headers(scope, b"host"):
            text = value.decode("latin-1")
            if not self._is_allowed(text, scope):
                raise Forbidden(
                    f"the header Host is {text[:MAX_SHOWN_CHARS]!r}, which is no name of this server; allow it by "
                    "--allowed-host NAME, or set API keys"
                )

    def check_origin(self, scope: Scope) -> None:
        """Raise Forbidden if a page of another site sends the request, unless it only reads."""
        if scope["method"] in SAFE_METHODS or "*" in self._origins:
            return
        origins = [value.decode("latin-1") for value in all_headers(scope, b"origin")]
        site = header(scope, b"sec-fetch-site")
        if site in (b"same-origin", b"none") or (not origins and site is None):
            return
        own = (header(scope, b"host") or b"").decode("latin-1").lower()
        if origins and all(
            origin in self._origins or origin.lower().partition("://")[2] == own != "" for origin in origins
        ):
            return
        page = repr(origins[0][:MAX_SHOWN_CHARS]) if origins else "another site"
        raise Forbidden(
            f"a server without keys rejects requests from web pages of {page}; allow the origin by --cors-origin "
            "ORIGIN, or set API keys"
        )

    def check_is_local(self, scope: Scope) -> None:
        """Raise Forbidden unless the server's own page or a program sends the request, on this machine.

        It is stricter than the other checks: --allowed-host and --cors-origin change nothing, and a proxy that says so
        may have its clients on other machines.
        """
        hosts = [value.decode("latin-1") for value in all_headers(scope, b"host")]
        is_local = bool(hosts) and all(map(_is_loopback, hosts))
        is_own = header(scope, b"sec-fetch-site") in (None, b"same-origin", b"none")
        is_passed_on = any(name.startswith(PROXY_HEADERS) for name, _ in scope["headers"])
        if all_headers(scope, b"origin") or not is_own or is_passed_on or not is_local:
            raise Forbidden(
                "without an admin key this route is for the server's own page and for programs, both at localhost "
                "without a proxy; for others set CHAIRLIFT_ADMIN_KEY"
            )

    def _is_allowed(self, host: str, scope: Scope) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = (match["v6"] or match["name"]).lower().rstrip(".")
        server = scope.get("server")
        own_address = str(server[0]).lower() if server else ""
        if name in self._names or name.endswith(self._suffixes) or name == own_address:
            return True
        address = _parse_address(name)
        if address is None:
            return False
        return address.is_loopback or address.is_unspecified or address == _parse_address(own_address)


def _is_loopback(host: str) -> bool:
    """Return whether a header Host is localhost, a name below it, or a loopback address."""
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = (match["v6"] or match["name"]).lower().rstrip(".")
    address = _parse_address(name)
    return name == "localhost" or name.endswith(".localhost") or (address is not None and address.is_loopback)


def _parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an IP address, an IPv4 one for an IPv6 one that maps it, None for a name."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped

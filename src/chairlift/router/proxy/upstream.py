"""Upstream: the HTTP client of all replicas, with its TLS files and keys."""

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
from yarl import URL

from chairlift.core.errors import ConfigError
from chairlift.web.error_responses import Header

log = logging.getLogger(__name__)

IDLE_SECONDS = 4.0
"""Seconds for which a connection to a replica stays open without a request. Servers close theirs after 5 s (uvicorn's
default) or more; a request on a connection that is being closed would fail."""

READ_BUFFER_BYTES = 262_144
"""Bytes of a response that are read ahead; a slow client stops the reading of its replica's stream there."""

HOP_HEADERS = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
})  # fmt: skip
"""Headers of one connection, which no proxy passes on (RFC 9110, section 7.6.1)."""

OWN_REQUEST_HEADERS = HOP_HEADERS | {
    b"host", b"content-length", b"authorization", b"x-api-key", b"cookie", b"expect", b"accept-encoding", b"origin",
    b"referer", b"x-request-id", b"x-request-timeout-ms", b"x-chairlift-router", b"x-chairlift-progress",
}  # fmt: skip
"""Request headers that the router sets itself, or that concern the client and the router alone."""

OWN_RESPONSE_HEADERS = HOP_HEADERS | {
    b"content-length", b"date", b"server", b"x-request-id", b"x-chairlift-load", b"set-cookie",
    b"x-chairlift-replica", b"x-chairlift-attempts",
}  # fmt: skip
"""Response headers that the router sets itself, or that concern the replica and the router alone. A replica may be a
router, whose replicas only administrators may know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamConfig:
    """How replicas are reached.

    Attributes:
        key_file: file whose first line is the API key that every replica accepts; None where they need none.
        admin_key_file: the same with their admin key, with which administrators read replicas through the router; None
            where the router has none.
        ca: PEM file of the CAs that sign the replicas' certificates; None for those of the system.
        certificate: PEM file of the router's own certificate chain, for mutual TLS.
        key: PEM file of its private key.
    """

    key_file: Path | None = None
    admin_key_file: Path | None = None
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            names = ("replica_tls_key", "replica_tls_cert")
            given, missing = names if self.certificate is None else reversed(names)
            raise ConfigError(f"{given} needs {missing}, too: a certificate and its private key", option=given)

    def read_key(self) -> str:
        """Return the API key, "" for none. Raises ConfigError."""
        return _read_key(self.key_file, "replica_key_file")

    def read_admin_key(self) -> str:
        """Return the admin key, "" for none. Raises ConfigError."""
        return _read_key(self.admin_key_file, "replica_admin_key_file")

    def make_ssl_context(self) -> ssl.SSLContext:
        """Return the context of connections with TLS. Raises ConfigError for a file that cannot be used."""
        self.load_files(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))  # names the file that is at fault
        context = ssl.create_default_context(cafile=None if self.ca is None else str(self.ca))
        self.load_files(context)
        return context

    def load_files(self, context: ssl.SSLContext) -> None:
        """Load CAs and certificate into a context; CAs that it has stay trusted. Raises ConfigError."""
        try:
            if self.ca is not None:
                context.load_verify_locations(cafile=str(self.ca))
        except (OSError, ssl.SSLError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"cannot read replica_tls_ca {self.ca}: {reason}", option="replica_tls_ca") from None
        if self.certificate is not None and self.key is not None:
            try:
                context.load_cert_chain(self.certificate, self.key, password="")  # else OpenSSL asks the terminal
            except (OSError, ssl.SSLError) as error:
                reason = getattr(error, "strerror", None) or error
                raise ConfigError(
                    f"cannot use replica_tls_cert {self.certificate} with replica_tls_key {self.key}: {reason}",
                    option="replica_tls_cert",
                ) from None


class Upstream:
    """The connections to all replicas. Belongs to one event loop.

    Attributes:
        session: aiohttp's session, for probes, too.
    """

    def __init__(self, config: UpstreamConfig) -> None:
        """Read the files. Raises ConfigError."""
        self._config = config
        self._key, self._admin_key = config.read_key(), config.read_admin_key()
        self._ssl = context = config.make_ssl_context()
        self.session = _session(aiohttp.TCPConnector(limit=0, ssl=context, keepalive_timeout=IDLE_SECONDS))
        self._unpooled_session = _session(aiohttp.TCPConnector(limit=0, ssl=context, force_close=True))

    def make_probe_session(self) -> aiohttp.ClientSession:
        """Return a session whose requests each open a connection, which is a part of a health check."""
        return _session(aiohttp.TCPConnector(limit=0, ssl=self._ssl, force_close=True))

    def reload(self) -> None:
        """Read API key and certificates again, for new connections; the old ones stay if one cannot be read."""
        try:
            key, admin_key = self._config.read_key(), self._config.read_admin_key()
            self._config.make_ssl_context()  # finds every fault before the context in use changes
            # Into the context in use: aiohttp's connectors keep the one that they were made with.
            self._config.load_files(self._ssl)
        except ConfigError as error:
            log.error("the old key and certificates towards the replicas stay: %s", error)
            return
        self._key, self._admin_key = key, admin_key

    def key_headers(self) -> dict[str, str]:
        """Return the headers with which the router identifies itself to a replica."""
        return _bearer(self._key)

    @property
    def has_admin_key(self) -> bool:
        """Whether the router knows the admin key of the replicas."""
        return bool(self._admin_key)

    def admin_headers(self) -> dict[str, str]:
        """Return the headers of a request to a replica's routes of administrators."""
        return _bearer(self._admin_key)

    def request_headers(self, headers: list[Header], extra: Mapping[str, str]) -> list[tuple[str, str]]:
        """Return the headers of a request to a replica: the client's, the router's key and `extra`."""
        removed = OWN_REQUEST_HEADERS | _connection_options(headers)
        if "traceparent" in extra:
            removed |= {b"traceparent"}
        passed = [
            (name.decode("latin-1"), _decode(value))
            for name, value in headers
            if name not in removed and not name.startswith((b"sec-", b"x-forwarded-"))
        ]
        # The router reads and rewrites the response, so it must not be compressed.
        return [*passed, ("accept-encoding", "identity"), *self.key_headers().items(), *extra.items()]

    def request(
        self, method: str, replica_url: str, target: str, headers: list[tuple[str, str]], body: bytes | None,
        on_connected: Callable[[bool], None], *, may_reuse: bool = True, connect_seconds: float | None = None,
    ) -> "aiohttp.client._RequestContextManager":  # fmt: skip
        """Send a request; the target is the encoded path with its query.

        `on_connected` is called when the connection is open, before the request is sent, with whether the connection
        had requests before. Without `may_reuse` it is a new one, which is closed behind the response.
        """
        assert target.startswith("/"), "the target would be a part of the host"
        # A new connection for each request: a pooled one may be ended by the replica at any moment.
        session = self.session if may_reuse else self._unpooled_session
        return session.request(
            method, URL(replica_url + target, encoded=True), headers=headers, data=body, allow_redirects=False,
            trace_request_ctx=on_connected, timeout=aiohttp.ClientTimeout(total=None, connect=connect_seconds),
        )  # fmt: skip

    async def close(self) -> None:
        """Close all connections."""
        await self.session.close()
        await self._unpooled_session.close()
        await asyncio.sleep(0)  # lets the transports notice


def _read_key(file: Path | None, option: str) -> str:
    if file is None:
        return ""
    try:
        key = file.read_text(encoding="ascii").partition("\n")[0].strip()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read {option} {file}: {reason}", option=option) from None
    if not key or not key.isprintable() or " " in key:
        raise ConfigError(f"{option} {file} has no API key in its first line", option=option)
    return key


def _bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


def _session(connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector, auto_decompress=False, read_bufsize=READ_BUFFER_BYTES, trust_env=False,
        cookie_jar=aiohttp.DummyCookieJar(), timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        skip_auto_headers=("User-Agent", "Accept-Encoding", "Accept", "Content-Type"),
        max_line_size=65_536, max_field_size=65_536, trace_configs=[_connection_trace()],
    )  # fmt: skip


def _connection_trace() -> aiohttp.TraceConfig:
    """Return a trace that calls the request's own function when it has a connection."""

    async def on_connection(session: aiohttp.ClientSession, context: SimpleNamespace, params: Any) -> None:
        on_connected: Callable[[bool], None] | None = context.trace_request_ctx
        if on_connected is not None:
            on_connected(isinstance(params, aiohttp.TraceConnectionReuseconnParams))

    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(on_connection)
    trace.on_connection_reuseconn.append(on_connection)
    return trace


def response_headers(response: aiohttp.ClientResponse) -> list[Header]:
    """Return the headers of a replica's response that its client gets; HEAD has the length of the body of a GET."""
    headers = [(name.lower(), value) for name, value in response.raw_headers]
    removed = OWN_RESPONSE_HEADERS | _connection_options(headers)
    if response.method == "HEAD":
        removed -= {b"content-length"}
    return [(name, value) for name, value in headers if name not in removed]


def _connection_options(headers: Sequence[Header]) -> frozenset[bytes]:
    """Return the names of headers that the sender has declared as those of one connection."""
    return frozenset(
        option.strip().lower() for name, value in headers if name == b"connection" for option in value.split(b",")
    )


def _decode(value: bytes) -> str:
    """Decode a header's value, which aiohttp encodes as UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")

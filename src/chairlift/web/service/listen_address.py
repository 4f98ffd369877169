"""ListenAddress: the address and the TLS files with which an HTTP service listens; listeners(): its sockets."""

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chairlift.core.errors import ConfigError
from chairlift.web.service.tls_files import certificate_expiry, load_certificate, load_client_ca

BACKLOG = 2048
ACCEPTS_PER_ITERATION = 32
"""Connections accepted in one iteration of the event loop; uvloop accepts one an iteration from each listening socket.
With one, new connections wait for hundreds of milliseconds at a thousand requests a second (ADR 0017)."""

SEND_BUFFER = 65_536
"""Bytes that the system buffers for a client that does not read; its default would be megabytes."""

_Address = tuple[Any, Any, int, str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAddress:
    """The address and the TLS files with which a server listens.

    Attributes:
        host: an address or a name of this machine.
        port: 0 for any free port.
        certificate: PEM file of a certificate chain; with it and its key the server uses TLS.
        key: PEM file of the certificate's private key.
        client_ca: PEM file of the CAs that sign client certificates; with it every client needs one.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None

    def bind(self) -> socket.socket:
        """Bind the port and return the listening socket. Raises ConfigError when that fails."""
        *socket_type, _, address = self._addresses()[0]
        listener = socket.socket(*socket_type)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # accepted connections inherit it
            listener.bind(address)
            listener.listen(BACKLOG)
        except (OSError, OverflowError) as error:
            listener.close()
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"cannot listen on {self.host} port {self.port}: {reason}", option="port") from None
        listener.setblocking(False)
        return listener

    def load_tls_files(self, context: ssl.SSLContext) -> None:
        """Load the TLS files into a context. Raises ConfigError, and the context is unchanged then."""
        if self.certificate is not None and self.key is not None:
            if self.client_ca is not None:
                load_client_ca(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.client_ca)
            load_certificate(context, self.certificate, self.key)
            if self.client_ca is not None:
                load_client_ca(context, self.client_ca)  # adds CAs; those that it had stay trusted

    def certificate_expiry(self) -> float:
        """Return when the certificate in its file expires, in seconds since 1970; 0 without TLS."""
        return 0.0 if self.certificate is None else certificate_expiry(self.certificate)

    def tls_context(self) -> ssl.SSLContext | None:
        """Return a context with the TLS files, None for a server without TLS. Raises ConfigError."""
        if self.certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if self.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        self.load_tls_files(context)
        return context

    def url(self, listener: socket.socket) -> str:
        """Return the server's URL."""
        host, port = listener.getsockname()[:2]
        scheme = "http" if self.certificate is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address. Raises ConfigError for a name that does not resolve."""
        return all(str(each[4][0]).startswith("127.") or each[4][0] == "::1" for each in self._addresses())

    def _addresses(self) -> list[_Address]:
        try:
            return socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"cannot resolve the host {self.host!r}: {reason}", option="host") from None


def listeners(listener: socket.socket) -> list[socket.socket]:
    """Return the socket and duplicates of it; an iteration accepts one connection from each.

    Returns only the socket itself if the limit of open files allows no duplicates.
    """
    sockets = [listener]
    try:
        while len(sockets) < ACCEPTS_PER_ITERATION:
            sockets.append(listener.dup())
    except OSError:
        while len(sockets) > 1:
            sockets.pop().close()
    return sockets

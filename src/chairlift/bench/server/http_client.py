"""Client: a thin HTTP client of one server for load generators, with a connection pool and a timestamp on every chunk.

    send ──> idle connection, or a new one ──> request in one write ──> header block ──> body chunks ──> ExchangeEnd
                ▲                                                                                            │
                └──────────────── complete, and the server keeps it open ────────────────────────────────────┘

Connections are reused as most clients reuse them, so that a rejection costs what it costs real clients. The pool has no
upper limit: a request never waits for another's connection. The client never retries, because the report counts lost
connections.
"""

import asyncio
import errno
import socket
import ssl
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, cast

import httptools

from chairlift.bench.server.server_address import Address
from chairlift.core.errors import ChairliftError, ConfigError

CONNECT_SECONDS = 10.0
IDLE_REUSE_SECONDS = 4.0
"""Longest idle time of a reused connection; shorter than servers', so that none is closed during its reuse."""

MAX_HEAD_BYTES = 262_144

Headers = list[tuple[bytes, bytes]]


class ExchangeEndKind(StrEnum):
    """The kinds of end of an exchange."""

    COMPLETE = "complete"
    CONNECTION_LOST = "cut"
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    INVALID_RESPONSE = "garbage"


@dataclass(frozen=True, slots=True)
class ExchangeEnd:
    """The end of an exchange.

    Attributes:
        how: the kind of end.
        at: the time of the end, by time.monotonic().
        why: a short reason when the exchange is not complete.
    """

    how: ExchangeEndKind
    at: float
    why: str = ""


class ResponseHandler(Protocol):
    """Receives one response; an exception that it raises ends the exchange as INVALID_RESPONSE."""

    def head(self, status: int, headers: Headers) -> None:
        """Receive status and headers, whose names are in lower case."""
        ...

    def body(self, chunk: bytes, now: float) -> None:
        """Receive a chunk of the body and its arrival time, by time.monotonic()."""
        ...


class NoResponse(ChairliftError):
    """A server is unreachable, or its response is invalid."""

    code = "no_answer"


class _Connection(asyncio.Protocol):
    """One connection and its current exchange."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._handler: ResponseHandler | None = None
        self._result: asyncio.Future[ExchangeEnd] | None = None
        self._now = 0.0
        self._clear()
        self.is_usable = False
        self.idle_since = 0.0

    def _clear(self) -> None:
        self._headers: Headers = []
        self._head_bytes = 0
        self._has_head = False
        self._ends_with_connection = False

    def send(self, request: bytes, handler: ResponseHandler) -> "asyncio.Future[ExchangeEnd]":
        """Send a request; returns a future of the end. The connection must be usable."""
        assert self._transport is not None, "it is connected"
        assert self._result is None, "a connection has one exchange at a time"
        self._clear()
        self._handler, self._result = handler, asyncio.get_running_loop().create_future()
        result = self._result
        self._transport.write(request)
        return result

    def abort(self) -> None:
        """Close the connection at once, without waiting for its exchange."""
        self.is_usable = False
        if self._transport is not None:
            self._transport.abort()

    def _end(self, how: ExchangeEndKind, why: str = "") -> None:
        result, self._result, self._handler = self._result, None, None
        if how is not ExchangeEndKind.COMPLETE:
            self.abort()
        self.idle_since = self._now
        if result is not None and not result.done():
            result.set_result(ExchangeEnd(how, self._now, why))

    # -- asyncio's callbacks ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note that the connection is usable."""
        self._transport, self.is_usable = cast("asyncio.Transport", transport), True

    def data_received(self, data: bytes) -> None:
        """Parse received data; data without a request and invalid HTTP end the connection."""
        self._now = time.monotonic()
        if self._handler is None:
            self.abort()
            return
        if not self._has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
            self._end(
                ExchangeEndKind.INVALID_RESPONSE,
                "another protocol" if isinstance(error, httptools.HttpParserUpgrade) else str(cause),
            )
            return
        if not self._has_head and self._head_bytes > MAX_HEAD_BYTES:
            self._end(ExchangeEndKind.INVALID_RESPONSE, f"a head of more than {MAX_HEAD_BYTES} bytes")

    def connection_lost(self, exc: Exception | None) -> None:
        """End the exchange; it is complete if the response was to end with the connection."""
        self.is_usable = False
        self._now = time.monotonic()
        if self._handler is not None:
            whole = self._has_head and self._ends_with_connection and exc is None
            why = "the connection was closed " + ("in the middle" if self._has_head else "without a response")
            self._end(*((ExchangeEndKind.COMPLETE, "") if whole else (ExchangeEndKind.CONNECTION_LOST, why)))

    # -- httptools' callbacks --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Close the connection when a response begins without a request."""
        if self._handler is None:
            self.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header."""
        if not self._has_head:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Pass the header block on, unless the response is an interim one."""
        status = self._parser.get_status_code()
        if status < 200 or self._handler is None:
            return
        self._has_head = True
        names = {name for name, _ in self._headers}
        self._ends_with_connection = not names & {b"content-length", b"transfer-encoding"}
        self._handler.head(status, self._headers)

    def on_body(self, body: bytes) -> None:
        """Pass a chunk of the body on."""
        if self._handler is not None:
            self._handler.body(body, self._now)

    def on_message_complete(self) -> None:
        """End the exchange; the connection stays open if the server keeps it."""
        if self._parser.get_status_code() < 200:
            self._clear()
            return
        if not self._parser.should_keep_alive():
            self.abort()
        self._end(ExchangeEndKind.COMPLETE)


class _BufferedResponse:
    """Collects a whole response of limited size."""

    def __init__(self, limit: int) -> None:
        self.status = 0
        self.chunks: list[bytes] = []
        self._left = limit

    def head(self, status: int, headers: Headers) -> None:
        self.status = status

    def body(self, chunk: bytes, now: float) -> None:
        self._left -= len(chunk)
        if self._left < 0:
            raise ValueError("the response is too long")
        self.chunks.append(chunk)


class Client:
    """A client of one server; it belongs to one event loop and must be closed.

    The host name is resolved once, so that no request waits for a resolver thread.
    """

    def __init__(self, address: Address, key: str = "") -> None:
        """Create a client; `key` is sent as `Authorization: Bearer`, "" for none.

        Raises ConfigError for a key that a header cannot contain.
        """
        if not (key.isascii() and key.isprintable()):
            raise ConfigError("the key has characters that a header cannot contain", option="api_key_file")
        self.address = address
        self._tls_context = ssl.create_default_context() if address.scheme == "https" else None
        self._addresses: list[str] = []
        self._idle: list[_Connection] = []
        authorization = f"authorization: Bearer {key}\r\n" if key else ""
        self._common = f"host: {address.authority}\r\n{authorization}accept-encoding: identity\r\n"

    def request(self, method: str, path: str, body: bytes = b"", headers: str = "") -> bytes:
        """Return a request's bytes; `path` is relative to the address's base, `headers` are whole lines."""
        body_headers = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n" if body else ""
        return (
            f"{method} {self.address.base}{path} HTTP/1.1\r\n{self._common}{headers}{body_headers}\r\n".encode() + body
        )

    async def send(self, request: bytes, handler: ResponseHandler, seconds: float) -> ExchangeEnd:
        """Send a request and pass the response to the handler, for at most `seconds`.

        Cancelling closes the connection.
        """
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(seconds):
                connection = self._take_idle_connection() or await self._connect()
                ended = await connection.send(request, handler)
        except TimeoutError:
            ended = ExchangeEnd(
                ExchangeEndKind.TIMEOUT, time.monotonic(), "no response in time" if connection else "no connection"
            )
            if connection is not None:
                connection.abort()
        except OSError as error:
            ended = ExchangeEnd(ExchangeEndKind.UNREACHABLE, time.monotonic(), _describe_error(error))
        except BaseException:
            if connection is not None:
                connection.abort()
            raise
        if connection is not None and connection.is_usable:
            self._idle.append(connection)
        return ended

    async def fetch(
        self, method: str, path: str, body: bytes = b"", *, seconds: float = CONNECT_SECONDS, limit: int = 2**22
    ) -> tuple[int, bytes]:
        """Return status and body of a response of at most `limit` bytes.

        Raises NoResponse.
        """
        response = _BufferedResponse(limit)
        ended = await self.send(self.request(method, path, body), response, seconds)
        if ended.how is ExchangeEndKind.COMPLETE:
            return response.status, b"".join(response.chunks)
        raise NoResponse(f"{self.address.url} does not respond: {ended.why}")

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().abort()

    def _take_idle_connection(self) -> _Connection | None:
        """Return the most recently used idle connection that is reusable, or None."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable and time.monotonic() - connection.idle_since < IDLE_REUSE_SECONDS:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> _Connection:
        """Connect to the first address that accepts; later connections use only that one.

        Raises the last address's OSError when none accepts.
        """
        if not self._addresses:
            self._addresses = _resolve(self.address)
        failed: OSError = OSError(errno.EADDRNOTAVAIL, "no address")
        for each in self._addresses:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    _, connection = await asyncio.get_running_loop().create_connection(
                        _Connection, each, self.address.port, ssl=self._tls_context,
                        server_hostname=self.address.host if self._tls_context else None,
                    )  # fmt: skip
            except OSError as error:
                failed = error
                continue
            self._addresses = [each]
            return connection
        raise failed


def _resolve(address: Address) -> list[str]:
    infos = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in infos))


def _describe_error(error: OSError) -> str:
    """Return the reason of a connection error without the address, which the caller knows."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, socket.gaierror):
        return f"its name is not known: {error.strerror}"
    messages = {
        errno.ECONNREFUSED: "connection refused", errno.EMFILE: "this process has no file descriptors left",
        errno.ECONNRESET: "connection reset", errno.EADDRNOTAVAIL: "this machine has no such address, or no port left",
    }  # fmt: skip
    return messages.get(error.errno or 0, error.strerror or str(error) or type(error).__name__)

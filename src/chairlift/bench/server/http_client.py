"""HTTP for load generators: a thin client for one server, with a pool of kept connections and a clock on every byte.

    ask ──> kept connection, or a new one ──> request in one write ──> head ──> body, piece by piece ──> Ended
                ▲                                                                                        │
                └──────────────── complete, and the server keeps it open ────────────────────────────────┘

Connections are kept as most clients keep them, so that a refusal costs what it costs in life. The pool has no upper
end: a request never waits for another's connection. Nothing is sent twice, because a request that was cut is a finding.
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
KEEP_SECONDS = 4.0
"""That an idle connection is used again; servers close theirs later, so that the two do not cross."""

MAX_HEAD_BYTES = 262_144

Headers = list[tuple[bytes, bytes]]


class ExchangeEndKind(StrEnum):
    """How an exchange ended."""

    COMPLETE = "complete"
    CONNECTION_LOST = "cut"
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    INVALID_RESPONSE = "garbage"


@dataclass(frozen=True, slots=True)
class ExchangeEnd:
    """The end of an exchange.

    Attributes:
        how: it ended.
        at: time.monotonic().
        why: a few words where it is not complete.
    """

    how: ExchangeEndKind
    at: float
    why: str = ""


class ResponseHandler(Protocol):
    """Takes one answer. What it raises ends the exchange as garbage."""

    def head(self, status: int, headers: Headers) -> None:
        """Take status and headers, whose names are in small letters."""
        ...

    def body(self, piece: bytes, now: float) -> None:
        """Take a piece of the body, which came at this time.monotonic()."""
        ...


class NoResponse(ChairliftError):
    """A server is not there, or what it says is no answer."""

    code = "no_answer"


class _Connection(asyncio.Protocol):
    """One connection, and the exchange that is on it."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._taker: ResponseHandler | None = None
        self._over: asyncio.Future[ExchangeEnd] | None = None
        self._now = 0.0
        self._clear()
        self.is_usable = False
        self.idle_since = 0.0

    def _clear(self) -> None:
        self._headers: Headers = []
        self._head_bytes = 0
        self._has_head = False
        self._ends_with_connection = False

    def ask(self, request: bytes, taker: ResponseHandler) -> "asyncio.Future[ExchangeEnd]":
        """Send a request; the connection must be usable."""
        assert self._transport is not None, "it is connected"
        assert self._over is None, "a connection has one exchange at a time"
        self._clear()
        self._taker, self._over = taker, asyncio.get_running_loop().create_future()
        over = self._over
        self._transport.write(request)
        return over

    def abort(self) -> None:
        """Drop it, whatever is on it."""
        self.is_usable = False
        if self._transport is not None:
            self._transport.abort()

    def _end(self, how: ExchangeEndKind, why: str = "") -> None:
        over, self._over, self._taker = self._over, None, None
        if how is not ExchangeEndKind.COMPLETE:
            self.abort()
        self.idle_since = self._now
        if over is not None and not over.done():
            over.set_result(ExchangeEnd(how, self._now, why))

    # -- asyncio's callbacks ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport, self.is_usable = cast("asyncio.Transport", transport), True

    def data_received(self, data: bytes) -> None:
        """Read on; what nobody asked for, or is no HTTP, ends the connection."""
        self._now = time.monotonic()
        if self._taker is None:
            self.abort()
            return
        if not self._has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            said = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
            self._end(
                ExchangeEndKind.INVALID_RESPONSE,
                "another protocol" if isinstance(error, httptools.HttpParserUpgrade) else str(said),
            )
            return
        if not self._has_head and self._head_bytes > MAX_HEAD_BYTES:
            self._end(ExchangeEndKind.INVALID_RESPONSE, f"a head of more than {MAX_HEAD_BYTES} bytes")

    def connection_lost(self, exc: Exception | None) -> None:
        """End what is on it: well, when the answer was to end so."""
        self.is_usable = False
        self._now = time.monotonic()
        if self._taker is not None:
            whole = self._has_head and self._ends_with_connection and exc is None
            why = "the connection was closed " + ("in the middle" if self._has_head else "without an answer")
            self._end(*((ExchangeEndKind.COMPLETE, "") if whole else (ExchangeEndKind.CONNECTION_LOST, why)))

    # -- httptools' callbacks --------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Behind an answer nothing may come by itself."""
        if self._taker is None:
            self.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        if not self._has_head:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Hand the head on, unless it is an interim one."""
        status = self._parser.get_status_code()
        if status < 200 or self._taker is None:
            return
        self._has_head = True
        names = {name for name, _ in self._headers}
        self._ends_with_connection = not names & {b"content-length", b"transfer-encoding"}
        self._taker.head(status, self._headers)

    def on_body(self, body: bytes) -> None:
        """Hand a piece on."""
        if self._taker is not None:
            self._taker.body(body, self._now)

    def on_message_complete(self) -> None:
        """End the exchange; the connection stays when the server keeps it."""
        if self._parser.get_status_code() < 200:
            self._clear()
            return
        if not self._parser.should_keep_alive():
            self.abort()
        self._end(ExchangeEndKind.COMPLETE)


class _BufferedResponse:
    """Keeps a whole answer."""

    def __init__(self, limit: int) -> None:
        self.status = 0
        self.pieces: list[bytes] = []
        self._left = limit

    def head(self, status: int, headers: Headers) -> None:
        self.status = status

    def body(self, piece: bytes, now: float) -> None:
        self._left -= len(piece)
        if self._left < 0:
            raise ValueError("the answer is too long")
        self.pieces.append(piece)


class Client:
    """One server's client. Belongs to one event loop and must be closed.

    Names are looked up once, so that no thread of a pool has a part in any request.
    """

    def __init__(self, address: Address, key: str = "") -> None:
        """`key` is sent as `Authorization: Bearer`; "" for none. Raises ConfigError for one that no header can hold."""
        if not (key.isascii() and key.isprintable()):
            raise ConfigError("the key has characters that no header can hold", option="api_key_file")
        self.address = address
        self._secured = ssl.create_default_context() if address.scheme == "https" else None
        self._addresses: list[str] = []
        self._idle: list[_Connection] = []
        given = f"authorization: Bearer {key}\r\n" if key else ""
        self._common = f"host: {address.authority}\r\n{given}accept-encoding: identity\r\n"

    def request(self, method: str, path: str, body: bytes = b"", headers: str = "") -> bytes:
        """Return a request's bytes. `path` begins behind the address's base; `headers` are whole lines."""
        about = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n" if body else ""
        return f"{method} {self.address.base}{path} HTTP/1.1\r\n{self._common}{headers}{about}\r\n".encode() + body

    async def ask(self, request: bytes, taker: ResponseHandler, seconds: float) -> ExchangeEnd:
        """Send a request and let the taker have what comes, for so many seconds at most; cancelling drops it."""
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(seconds):
                connection = self._kept() or await self._connect()
                ended = await connection.ask(request, taker)
        except TimeoutError:
            ended = ExchangeEnd(
                ExchangeEndKind.TIMEOUT, time.monotonic(), "no answer in time" if connection else "no connection"
            )
            if connection is not None:
                connection.abort()
        except OSError as error:
            ended = ExchangeEnd(ExchangeEndKind.UNREACHABLE, time.monotonic(), _named(error))
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
        """Return status and body of an answer of at most `limit` bytes. Raises NoAnswer."""
        kept = _BufferedResponse(limit)
        ended = await self.ask(self.request(method, path, body), kept, seconds)
        if ended.how is ExchangeEndKind.COMPLETE:
            return kept.status, b"".join(kept.pieces)
        raise NoResponse(f"{self.address.url} does not answer: {ended.why}")

    def close(self) -> None:
        """Drop the connections that are kept."""
        while self._idle:
            self._idle.pop().abort()

    def _kept(self) -> _Connection | None:
        """The connection that was used last, when it is still good."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable and time.monotonic() - connection.idle_since < KEEP_SECONDS:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> _Connection:
        """Raises OSError of the last address; one that answers is the only one from then on."""
        if not self._addresses:
            self._addresses = _looked_up(self.address)
        failed: OSError = OSError(errno.EADDRNOTAVAIL, "no address")
        for each in self._addresses:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    _, connection = await asyncio.get_running_loop().create_connection(
                        _Connection, each, self.address.port, ssl=self._secured,
                        server_hostname=self.address.host if self._secured else None,
                    )  # fmt: skip
            except OSError as error:
                failed = error
                continue
            self._addresses = [each]
            return connection
        raise failed


def _looked_up(address: Address) -> list[str]:
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def _named(error: OSError) -> str:
    """Say what is wrong with a connection, without the address, which the caller knows."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, socket.gaierror):
        return f"its name is not known: {error.strerror}"
    known = {
        errno.ECONNREFUSED: "connection refused", errno.EMFILE: "this process has no file descriptors left",
        errno.ECONNRESET: "connection reset", errno.EADDRNOTAVAIL: "this machine has no such address, or no port left",
    }  # fmt: skip
    return known.get(error.errno or 0, error.strerror or str(error) or type(error).__name__)

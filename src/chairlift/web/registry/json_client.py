"""JSONClient: calls an HTTP service that speaks JSON; every response is bounded in size and in time."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import aiohttp
import orjson

from chairlift.core.errors import ConfigError
from chairlift.core.router_errors import DiscoveryFailed
from chairlift.observability.url_check_and_redaction import without_user_info

MAX_RESPONSE_BYTES = 16 * 2**20
"""Longest response, and longest line of a stream."""

MAX_TOKEN_BYTES = 65_536
MAX_ERROR_CHARS = 200
"""Most characters of an error response that a message quotes."""

CALL_SECONDS = 5.0
"""Seconds that a call may take at one host."""

CONNECT_SECONDS = 2.0
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class JSONClientConfig:
    """How a service is reached.

    Attributes:
        base_urls: URLs of hosts that answer alike; the next is asked when one fails.
        ca_file: PEM file of the CAs that sign the service's certificate; None for those of the system.
        cert_file: PEM file of the client's certificate chain, with key_file.
        key_file: PEM file of the private key of cert_file.
        token_file: file with the token that each call has; it is read again for each call, because tokens are renewed.
        token_header: header of the token.
        token_prefix: text before the token in its header.
    """

    base_urls: tuple[str, ...]
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    token_file: Path | None = None
    token_header: str = "authorization"
    token_prefix: str = "Bearer "

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the context for https, None for http. Raises ConfigError for files that cannot be used."""
        if not self.base_urls[0].startswith("https:"):
            return None
        if (self.cert_file is None) != (self.key_file is None):
            raise ConfigError("cert_file and key_file need each other: a certificate and its private key")
        try:
            context = ssl.create_default_context(cafile=None if self.ca_file is None else str(self.ca_file))
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file)
        except (OSError, ValueError) as error:
            files = ", ".join(str(each) for each in (self.ca_file, self.cert_file, self.key_file) if each is not None)
            raise ConfigError(f"cannot read the TLS files {files}: {error}") from None
        return context

    def read_token(self) -> str | None:
        """Return the token, None without a token file. Raises DiscoveryFailed for a file that cannot be used."""
        if self.token_file is None:
            return None
        try:
            with self.token_file.open("rb") as file:
                token = file.read(MAX_TOKEN_BYTES + 1).decode("ascii").strip()
        except (OSError, ValueError) as error:
            raise DiscoveryFailed(f"cannot read the token file {self.token_file}: {error}") from None
        if not token or len(token) > MAX_TOKEN_BYTES or not token.isprintable():
            raise DiscoveryFailed(f"the token file {self.token_file} holds no token: one line of text is needed")
        return token


@dataclass(frozen=True, slots=True)
class JSONResponse:
    """A response below status 500.

    Attributes:
        status: HTTP status.
        body: parsed JSON; the text where the response is not JSON.
        headers: headers, whose names ignore case.
    """

    status: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)

    def describe(self) -> str:
        """Return status and body for a message."""
        text = self.body if isinstance(self.body, str) else orjson.dumps(self.body).decode()
        return f"status {self.status}: {text[:MAX_ERROR_CHARS]}"

    @property
    def retry_after(self) -> float | None:
        """Seconds of the header Retry-After; None without it, and for a date, which this client does not read."""
        text = self.headers.get("retry-after", "").strip()
        return float(text) if text.isdecimal() and text.isascii() and len(text) < 10 else None


class JSONClient:
    """An HTTP client for one service with one or several hosts."""

    def __init__(self, config: JSONClientConfig) -> None:
        """Create the client. Raises ConfigError for TLS files that cannot be used."""
        self._config = config
        self._tls = config.tls_context()
        self._host = 0
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def call(
        self, method: str, path: str, *, params: Sequence[tuple[str, str]] = (), body: Any = None,
        headers: Mapping[str, str] = NO_HEADERS, timeout_seconds: float = CALL_SECONDS,
    ) -> JSONResponse:  # fmt: skip
        """Call a route at the current host, and at the others when that fails.

        Raises DiscoveryFailed when no host gives a response below status 500; `details["retry_after"]` has the seconds
        that the last of them asks for.
        """
        reasons = []
        details: dict[str, float] = {}
        for _ in self._config.base_urls:
            try:
                async with (
                    asyncio.timeout(timeout_seconds),
                    self._send(method, path, params, body, headers) as response,
                ):
                    result = await _read_response(response)
                if result.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                    return result
                reasons.append(f"{self.base_url} answers with {result.describe()}")
                details = {} if result.retry_after is None else {"retry_after": result.retry_after}
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                reasons.append(f"{self.base_url}: {_describe_error(error, timeout_seconds)}")
            self.next_host()
        raise DiscoveryFailed(without_user_info("; ".join(reasons)), **details)

    @contextlib.asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        params: Sequence[tuple[str, str]] = (),
        body: Any = None,
        headers: Mapping[str, str] = NO_HEADERS,
        idle_seconds: float,
    ) -> AsyncIterator[AsyncIterator[Any]]:
        """Open a stream of JSON objects, one a line, at the current host.

        The stream ends when the service ends it, or after `idle_seconds` without a byte.
        Raises DiscoveryFailed when the stream cannot be opened (`details["status"]` has the status of a response that
        is not 200), is cut, or has a line that is not JSON.
        """
        try:
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(CALL_SECONDS):
                    response = await stack.enter_async_context(self._send(method, path, params, body, headers))
                    if response.status != HTTPStatus.OK:
                        result = await _read_response(response)
                        reason = without_user_info(f"{self.base_url} answers with {result.describe()}")
                        raise DiscoveryFailed(reason, status=result.status)
                yield await stack.enter_async_context(contextlib.aclosing(_read_lines(response.content, idle_seconds)))
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            reason = without_user_info(f"{self.base_url}: {_describe_error(error, CALL_SECONDS)}")
            self.next_host()
            raise DiscoveryFailed(reason) from None

    @property
    def base_url(self) -> str:
        """The URL of the current host."""
        return self._config.base_urls[self._host]

    def next_host(self) -> None:
        """Use the next host from now on."""
        self._host = (self._host + 1) % len(self._config.base_urls)

    @contextlib.asynccontextmanager
    async def _send(
        self, method: str, path: str, params: Sequence[tuple[str, str]], body: Any, headers: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=True if self._tls is None else self._tls, limit=8)
            self._session = aiohttp.ClientSession(
                connector=connector, auto_decompress=False,  # so that the bound of bytes holds
                headers={"accept": "application/json", "accept-encoding": "identity"},
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            )  # fmt: skip
        headers = dict(headers)
        if (token := self._config.read_token()) is not None:
            headers[self._config.token_header] = self._config.token_prefix + token
        data = None
        if body is not None:
            data = orjson.dumps(body)
            headers.setdefault("content-type", "application/json")
        async with self._session.request(
            method, self.base_url + path, params=list(params), data=data, headers=headers, allow_redirects=False
        ) as response:
            yield response


async def _read_response(response: aiohttp.ClientResponse) -> JSONResponse:
    """Return a whole response. Raises ValueError for one that is too long, or a 200 that is not JSON."""
    data = bytearray()
    async for chunk in response.content.iter_any():
        data += chunk
        if len(data) > MAX_RESPONSE_BYTES:
            raise ValueError(f"the response has more than {MAX_RESPONSE_BYTES} bytes, the limit")
    try:
        body = orjson.loads(data) if data else None
    except ValueError:
        body = data.decode("utf-8", "replace")
    return JSONResponse(response.status, body, response.headers)


async def _read_lines(content: aiohttp.StreamReader, idle_seconds: float) -> AsyncGenerator[Any, None]:
    """Yield the JSON value of each line until the stream ends or is idle."""
    pending = bytearray()
    while True:
        try:
            async with asyncio.timeout(idle_seconds):
                chunk = await content.readany()
        except TimeoutError:
            return
        pending += chunk
        *lines, rest = pending.split(b"\n")
        if len(rest) > MAX_RESPONSE_BYTES:
            raise ValueError(f"a line of the stream has more than {MAX_RESPONSE_BYTES} bytes, the limit")
        pending = bytearray(rest)
        if not chunk and rest:
            raise ValueError("the stream ends within a line")
        for line in lines:
            if line.strip():
                yield _parse_line(line)
        if not chunk:
            return


def _parse_line(line: bytes | bytearray) -> Any:
    try:
        return orjson.loads(line)
    except ValueError as error:
        raise ValueError(f"a line of the stream is not JSON: {error}") from None


def _describe_error(error: Exception, timeout_seconds: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_seconds:g} s"
    return str(error) or type(error).__name__

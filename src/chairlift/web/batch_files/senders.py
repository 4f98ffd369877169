"""AppSender and UrlSender: send the requests of a batch to an application of this process, or to a server."""

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson

from chairlift.web.batch_files.batch_lines import BatchLine
from chairlift.web.batch_files.batch_run import BatchResponse
from chairlift.web.body import App, Scope
from chairlift.web.request_info import SCOPE_KEY, RequestInfo

_JSON = [(b"content-type", b"application/json")]


class AppSender:
    """Calls an ASGI application directly, without a socket."""

    def __init__(self, app: App, make_info: Callable[[], RequestInfo] = RequestInfo) -> None:
        """Send to `app`; `make_info` makes the RequestInfo of each request."""
        self._app, self._make_info = app, make_info

    async def __call__(self, line: BatchLine) -> BatchResponse:
        """See Sender."""
        scope: Scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": line.path, "raw_path": line.path.encode(), "root_path": "", "query_string": b"",
            "headers": [*_JSON, (b"content-length", str(len(line.body)).encode()), (b"host", b"localhost")],
            "client": ("127.0.0.1", 0), "server": ("localhost", 0), SCOPE_KEY: self._make_info(),
        }  # fmt: skip
        has_read, is_over = False, asyncio.Event()

        async def receive() -> dict[str, Any]:
            nonlocal has_read
            if not has_read:
                has_read = True
                return {"type": "http.request", "body": line.body, "more_body": False}
            await is_over.wait()  # the client stays until it has the response
            return {"type": "http.disconnect"}

        status, headers, parts = 0, {}, []

        async def send(message: Mapping[str, Any]) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status, headers = message["status"], {name.lower(): value for name, value in message["headers"]}
            elif message["type"] == "http.response.body":
                parts.append(message.get("body", b""))

        try:
            await self._app(scope, receive, send)
        finally:
            is_over.set()
        return _response(
            status,
            b"".join(parts),
            headers.get(b"x-request-id", b"").decode(),
            headers.get(b"retry-after", b"").decode(),
        )


class UrlSender:
    """Sends requests to a server over HTTP. Use it as an async context manager."""

    def __init__(self, url: str, api_key: str = "", *, max_connections: int = 100, timeout: float = 3600.0) -> None:
        """Prepare a client.

        Args:
            url: address of the server, without /v1.
            api_key: sent as a bearer token; "" for none.
            max_connections: connections at most.
            timeout: seconds that a response may take.
        """
        self._url = url
        self._headers = {"content-type": "application/json"} | (
            {"authorization": f"Bearer {api_key}"} if api_key else {}
        )
        self._max_connections, self._timeout = max_connections, aiohttp.ClientTimeout(total=timeout)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._max_connections), headers=self._headers, timeout=self._timeout
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def __call__(self, line: BatchLine) -> BatchResponse:
        """See Sender."""
        assert self._session is not None, "the sender is not open"
        try:
            async with self._session.post(self._url + line.path, data=line.body) as response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return BatchResponse(0, "", f"no response from {self._url}: {error or type(error).__name__}")
        headers = response.headers
        return _response(
            response.status, content, headers.get("x-request-id", ""), headers.get("retry-after", "")
        )  # fmt: skip


def _response(status: int, content: bytes, request_id: str, retry_after: str) -> BatchResponse:
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        body = content.decode("utf-8", "replace")
    seconds = float(retry_after) if retry_after.isascii() and retry_after.isdecimal() else None
    return BatchResponse(status, request_id, body, seconds)

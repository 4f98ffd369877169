"""PageRoutes: serves the files of the web page, with headers that keep it from running foreign code."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from chairlift.web.body import App, Receive, Scope, Send, header
from chairlift.web.error_responses import Header, no_route
from chairlift.web.send_response import send_bytes

CONTENT_SECURITY_POLICY = "; ".join((
    "default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "img-src 'self' data:",
    "font-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
))  # fmt: skip
"""Scripts, styles, fonts and data come from this server only; nothing inline runs, and no other site shows the page."""

SECURITY_HEADERS: tuple[Header, ...] = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()), (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"), (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"), (b"cross-origin-resource-policy", b"same-origin"),
)  # fmt: skip

REVALIDATED = b"no-cache"
"""The browser keeps the file and asks by its ETag whether it has changed."""

IMMUTABLE = b"public, max-age=31536000, immutable"
"""The browser keeps the file for a year; another version has another name."""

NOT_MODIFIED = 304


class Content(Protocol):
    """The bytes of a file, plain and compressed by gzip, and a digest of them."""

    @property
    def plain(self) -> bytes:
        """The file."""
        ...

    @property
    def compressed(self) -> bytes:
        """The file, compressed by gzip."""
        ...

    @property
    def digest(self) -> str:
        """A text that changes with the file."""
        ...


class PageFile(Protocol):
    """A file of the page."""

    @property
    def path(self) -> str:
        """The path of its URL."""
        ...

    @property
    def content_type(self) -> str:
        """The header Content-Type."""
        ...

    @property
    def is_immutable(self) -> bool:
        """Whether another content would have another path."""
        ...

    def load(self) -> Content:
        """Return the bytes."""
        ...


class PageRoutes:
    """The routes / and /ui/..., which need no key: the page has no data, it asks for keys itself.

    Attributes:
        paths: the paths of all files; empty where the page is off.
    """

    def __init__(self, files: Iterable[PageFile]) -> None:
        self._files = {file.path: file for file in files}
        self.paths = frozenset(self._files)

    def routes(self) -> Sequence[tuple[str, str, App]]:
        """Return the routes; without files they respond 404, so that a router does not pass them on."""
        return [("GET", "/", self.send), ("GET", "/ui/{path:path}", self.send)]

    async def send(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a file, or 304 where the client has it. Raises NotFound."""
        file = self._files.get(scope["path"])
        if file is None:
            raise no_route(scope["path"])
        content = file.load()
        is_compressed = accepts_gzip(header(scope, b"accept-encoding") or b"")
        body = content.compressed if is_compressed else content.plain
        etag = f'"{content.digest}{"-gzip" if is_compressed else ""}"'.encode()
        headers = [
            *SECURITY_HEADERS, (b"etag", etag), (b"vary", b"accept-encoding"),
            (b"cache-control", IMMUTABLE if file.is_immutable else REVALIDATED),
        ]  # fmt: skip
        if has_etag(header(scope, b"if-none-match") or b"", etag):
            await send({"type": "http.response.start", "status": NOT_MODIFIED, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return
        if is_compressed:
            headers.append((b"content-encoding", b"gzip"))
        if scope["method"] == "HEAD":
            headers += [(b"content-type", file.content_type.encode()), (b"content-length", b"%d" % len(body))]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return
        await send_bytes(send, body, kind=file.content_type.encode(), headers=headers)


def accepts_gzip(accept_encoding: bytes) -> bool:
    """Return whether a header Accept-Encoding names gzip, and not with the weight 0."""
    for part in accept_encoding.lower().split(b","):
        name, _, parameters = part.partition(b";")
        if name.strip() == b"gzip":
            weight = parameters.replace(b" ", b"").removeprefix(b"q=")
            return weight.strip(b"0.") != b"" or weight == b""
    return False


def has_etag(if_none_match: bytes, etag: bytes) -> bool:
    """Return whether a header If-None-Match has this ETag; weak ones count."""
    given = [part.strip().removeprefix(b"W/") for part in if_none_match.split(b",")]
    return etag in given or given == [b"*"]

"""DocsRoutes: serves /openapi.json, /docs and /version."""

from collections.abc import Callable

import orjson

from chairlift.core.version import __version__
from chairlift.protocol.openapi import Schema
from chairlift.protocol.openapi_page import page
from chairlift.web.body import Receive, Scope, Send
from chairlift.web.send_response import send_bytes, send_object


class DocsRoutes:
    """The routes /openapi.json, /docs and /version."""

    def __init__(self, document: Callable[[], Schema]) -> None:
        """`document` returns the OpenAPI document as it is now."""
        self._document = document

    async def schema(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the OpenAPI document."""
        await send_bytes(send, orjson.dumps(self._document()))

    async def page(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the document as an HTML page, which loads nothing from other servers."""
        await send_bytes(send, page(self._document()).encode(), kind=b"text/html; charset=utf-8")

    async def version(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the version of Chairlift."""
        await send_object(send, {"version": __version__})

"""send_through: sends a request through the middleware to an ASGI application; Result: what came back."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from chairlift.web.access_log import AccessRecord
from chairlift.web.body import App
from chairlift.web.middleware import RequestMiddleware


@dataclass
class Result:
    """The messages, access records and exception of a request through the middleware."""

    messages: list[Any]
    records: list[AccessRecord]
    exception: BaseException | None = None

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        pairs = [(name.decode(), value.decode()) for name, value in self.messages[0]["headers"]]
        assert len(dict(pairs)) == len(pairs)
        return dict(pairs)

    @property
    def body(self) -> bytes:
        assert not self.messages[-1].get("more_body")
        return b"".join(message["body"] for message in self.messages[1:])

    @property
    def error(self) -> dict[str, Any]:
        return dict(json.loads(self.body)["error"])


def send_through(
    app: App, *, path: str = "/a", headers: Any = (), unlogged_paths: frozenset[str] = frozenset(), kind: str = "http"
) -> Result:  # fmt: skip
    result = Result([], [])

    async def send(message: Any) -> None:
        result.messages.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": kind, "method": "POST", "path": path, "headers": list(headers), "query_string": b""}
    try:
        asyncio.run(
            RequestMiddleware(app, quiet=unlogged_paths, on_response=result.records.append)(scope, receive, send)
        )
    except BaseException as error:
        result.exception = error
    return result

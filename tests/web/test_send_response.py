"""send_bytes: a whole response with its status, type, length and headers."""

from typing import Any

from chairlift.web.send_response import send_bytes
from support_middleware import send_through


def test_whole_answers() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send_bytes(send, b"hello", status=201, kind=b"text/plain", headers=[(b"x-a", b"b")])

    result = send_through(app)
    assert (result.status, result.body) == (201, b"hello")
    assert result.headers.items() >= {"content-type": "text/plain", "content-length": "5", "x-a": "b"}.items()

"""send_bytes, send_object: send a whole response."""

import orjson

from chairlift.web.body import Send
from chairlift.web.error_responses import Header


async def send_bytes(
    send: Send,
    body: bytes,
    *,
    status: int = 200,
    kind: bytes = b"application/json",
    headers: list[Header] | None = None,
) -> None:
    """Send a whole response."""
    sent = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), *(headers or ())]
    await send({"type": "http.response.start", "status": status, "headers": sent})
    await send({"type": "http.response.body", "body": body})


async def send_object(send: Send, value: object, *, status: int = 200, headers: list[Header] | None = None) -> None:
    """Send an object as JSON."""
    body = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)  # enums may be keys
    await send_bytes(send, body, status=status, headers=headers)

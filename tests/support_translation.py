"""A translator for tests of translated routes, and calls of ASGI applications in memory."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chairlift.core.errors import InvalidRequest
from chairlift.core.load_report import ReplicaState
from chairlift.protocol.translation.base import JSON_LINES, ClientRequest, FieldNames, Json
from chairlift.web.admission import AdmissionController, AdmissionLimits
from chairlift.web.auth.principal import Principal
from chairlift.web.body import App, Message
from chairlift.web.lifecycle import Lifecycle
from chairlift.web.request_info import SCOPE_KEY, RequestInfo


class Shouting:
    """A stream translation: chunks in upper case, one a line."""

    def chunk(self, chunk: Json) -> bytes:
        return json.dumps(chunk).upper().encode() + b"\n" if chunk else b""

    def error(self, error: Json) -> bytes:
        return f"ERROR {error['message']}\n".encode()

    def keep_alive(self, comment: bytes) -> bytes:
        return b"ALIVE " + comment.strip() + b"\n"

    def end(self) -> bytes:
        return b"END\n"


@dataclass
class Echo:
    """The translation of {"say": ...} to {"inner": ...}, and back."""

    body: Json
    ignored: tuple[str, ...] = ()
    names: FieldNames = field(default_factory=lambda: FieldNames({"inner": "say"}))
    stream_type: bytes = JSON_LINES

    def response(self, response: Json) -> Json:
        return {"translated": response}

    def stream(self) -> Shouting:
        return Shouting()


class EchoTranslator:
    """Translates with Echo. Records the clients."""

    inner_path = "/inner"

    def __init__(self) -> None:
        self.clients: list[ClientRequest] = []

    def translate(self, body: Mapping[str, Any], client: ClientRequest) -> Echo:
        self.clients.append(client)
        if "say" not in body:
            raise InvalidRequest("say is missing", param="say")
        return Echo({"inner": body["say"]}, tuple(name for name in body if name != "say"))


@dataclass
class Sent:
    """What an application has sent."""

    messages: list[Message]
    scope: dict[str, Any]

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        pairs = [(name.decode(), value.decode()) for name, value in self.messages[0]["headers"]]
        assert len(dict(pairs)) == len(pairs), pairs
        return dict(pairs)

    @property
    def pieces(self) -> list[bytes]:
        assert not self.messages[-1].get("more_body")
        return [message["body"] for message in self.messages[1:]]

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)


def request(
    app: App, body: bytes = b"", *, method: str = "POST", path: str = "/outer", query: str = "", tenant: str = "",
    headers: Mapping[str, str] | None = None, **scope_fields: Any,
) -> Sent:  # fmt: skip
    """Send a request to an application, which may raise its error."""
    scope: dict[str, Any] = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in (headers or {}).items()],
        SCOPE_KEY: RequestInfo(request_id="request-1", principal=Principal(tenant=tenant)), **scope_fields,
    }  # fmt: skip
    messages: list[Message] = []
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return pending.pop() if pending else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        messages.append(message)

    asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]
    return Sent(messages, scope)


def ready_lifecycle() -> Lifecycle:
    """Return the lifecycle of a service that accepts requests."""
    lifecycle = Lifecycle()
    lifecycle.mark_started(lambda: ReplicaState.READY)
    return lifecycle


def open_admission(**limits: Any) -> AdmissionController:
    """Return an admission queue with room."""
    return AdmissionController(AdmissionLimits(**limits))

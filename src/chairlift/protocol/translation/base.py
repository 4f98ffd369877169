"""Translator, Translation, StreamTranslation: a request of another API as one of the OpenAI API, and its response back.

    body of another API ──Translator.translate──> Translation.body ──> route of the OpenAI API
    response            <──Translation.response── JSON object       <──┘
    events              <──StreamTranslation───── chunks            <──┘

Translators know neither sockets nor engines, so that a server and a router use the same ones.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Json = dict[str, Any]

EVENT_STREAM = b"text/event-stream; charset=utf-8"
JSON_LINES = b"application/x-ndjson"


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """The HTTP request that brought a body: whose it is, its id and its first token.

    Attributes:
        tenant: the client's tenant.
        request_id: the HTTP request's id, which clients may repeat.
        first_token_at: returns the time of the first output token, on the clock of time.monotonic(); None before it,
            and where it is not known.
    """

    tenant: str = ""
    request_id: str = ""
    first_token_at: Callable[[], float | None] = field(default=lambda: None, compare=False)


class StreamTranslation(Protocol):
    """Turns the chunks of one streamed response into those of another API. Every method returns bytes to send."""

    def chunk(self, chunk: Json) -> bytes:
        """Translate one chunk of the OpenAI API."""
        ...

    def error(self, error: Json) -> bytes:
        """Translate the error object that ends the stream."""
        ...

    def keep_alive(self, comment: bytes) -> bytes:
        """Return what the stream has in place of silence; `comment` is a comment that its API may have, too."""
        ...

    def end(self) -> bytes:
        """Return the end of a stream that went well."""
        ...


class Translation(Protocol):
    """One translated request.

    Attributes:
        body: body of the OpenAI API.
        ignored: names of the request's fields without effect.
        names: what fields of `body`, and of the OpenAI API's errors, are called in the request.
        stream_type: content type of a streamed response.
    """

    body: Json
    ignored: Sequence[str]
    names: "FieldNames"
    stream_type: bytes

    def response(self, response: Json) -> Json:
        """Translate a whole response.

        Raises InvalidRequest, which the client gets in its place, for one that the request has made unusable.
        """
        ...

    def stream(self) -> StreamTranslation:
        """Begin the translation of a streamed response."""
        ...


class Translator(Protocol):
    """Translates the requests of one route.

    Attributes:
        inner_path: path of the route of the OpenAI API that serves them.
    """

    inner_path: str

    def translate(self, body: Mapping[str, Any], client: ClientRequest) -> Translation:
        """Translate a request. Raises InvalidRequest that names the request's own field, and NotFound."""
        ...


@dataclass(frozen=True, slots=True)
class FieldNames:
    """What the fields of a translated body are called in the request that it comes from.

    Attributes:
        fields: name in the body -> name in the request.
        messages: for each of the body's messages the place in the request: `input[3]`.
        message_members: beginning of the path within a message of the body -> that within its place.
        tools: for each of the body's tools the place in the request; without it the same one.
        tool_members: beginning of the path within a tool of the body -> that within a tool of the request.
        paths: beginning of a path in the body -> that in the request; they precede all others.
    """

    fields: Mapping[str, str] = field(default_factory=dict)
    messages: Sequence[str] = ()
    message_members: Mapping[str, str] = field(default_factory=dict)
    tools: Sequence[str] = ()
    tool_members: Mapping[str, str] = field(default_factory=dict)
    paths: Mapping[str, str] = field(default_factory=dict)

    def own(self, param: str) -> str:
        """Return the request's name of a field that an error names, such as `messages[2].content`."""
        for inner, own in self.paths.items():
            if param.startswith(inner):
                return own + param.removeprefix(inner)
        index, rest = _entry(param, "messages")
        if 0 <= index < len(self.messages):
            return self.messages[index] + _renamed(rest, self.message_members)
        index, rest = _entry(param, "tools")
        if index >= 0:
            place = self.tools[index] if index < len(self.tools) else f"tools[{index}]"
            return place + _renamed(rest, self.tool_members)
        longest = self._longest(param)
        return self.fields[longest] + param[len(longest) :] if longest else param

    def own_message(self, message: str, param: str) -> str:
        """Return the message of an error about `param`, or about a member of it, with the request's name."""
        longest = self._longest(message)
        if longest.startswith(param) and longest != param:
            return self.fields[longest] + message[len(longest) :]
        return message.replace(param, self.own(param), 1)

    def _longest(self, text: str) -> str:
        """Return the longest of the fields with which a text begins, "" for none."""
        names = (name for name in self.fields if text.startswith(name) and not _goes_on(text[len(name) :]))
        return max(names, key=len, default="")


def _goes_on(rest: str) -> bool:
    """Whether a name goes on in the text behind it."""
    return rest[:1].isalnum() or rest.startswith("_")


def _entry(param: str, name: str) -> tuple[int, str]:
    """Return the index and the rest of the path of an entry of a list; -1 for another field."""
    number, bracket, rest = param.removeprefix(f"{name}[").partition("]")
    if not param.startswith(f"{name}[") or not bracket or not number.isdigit():
        return -1, ""
    return int(number), rest


def _renamed(path: str, members: Mapping[str, str]) -> str:
    for inner, own in members.items():
        if path.startswith(inner):
            return own + path.removeprefix(inner)
    return path

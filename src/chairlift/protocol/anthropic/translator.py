"""MessagesTranslator, CountTokensTranslator: serve /v1/messages by chat completions, and count_tokens by /tokenize."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from chairlift.protocol.anthropic.event_stream import MessageEvents
from chairlift.protocol.anthropic.message_writer import MessageWriter
from chairlift.protocol.anthropic.request import MessageRequest, read_count_request, read_message_request
from chairlift.protocol.translation.base import EVENT_STREAM, ClientRequest, Json, StreamTranslation

ID_BYTES = 12


class MessagesTranslator:
    """Translates requests of /v1/messages; see Translator."""

    inner_path = "/v1/chat/completions"

    def translate(self, body: Mapping[str, Any], client: ClientRequest) -> "MessageTranslation":
        """See Translator."""
        return MessageTranslation(read_message_request(body))


class MessageTranslation:
    """One translated request; see Translation."""

    stream_type = EVENT_STREAM

    def __init__(self, request: MessageRequest) -> None:
        self._id, self._stop_sequences = f"msg_{secrets.token_hex(ID_BYTES)}", request.stop_sequences
        self.body, self.names = request.chat, request.names
        self.ignored: Sequence[str] = request.ignored

    def response(self, response: Json) -> Json:
        """See Translation."""
        return self._writer(response).whole(response)

    def stream(self) -> MessageEvents:
        """See Translation."""
        return MessageEvents(self._writer)

    def _writer(self, chunk: Json) -> MessageWriter:
        return MessageWriter(self._id, chunk["model"], self._stop_sequences)


class CountTokensTranslator:
    """Translates requests of /v1/messages/count_tokens; see Translator."""

    inner_path = "/tokenize"

    def translate(self, body: Mapping[str, Any], client: ClientRequest) -> "CountTranslation":
        """See Translator."""
        return CountTranslation(read_count_request(body))


class CountTranslation:
    """One translated request; see Translation."""

    stream_type = EVENT_STREAM

    def __init__(self, request: MessageRequest) -> None:
        self.body, self.names = request.chat, request.names
        self.ignored: Sequence[str] = request.ignored

    def response(self, response: Json) -> Json:
        """See Translation."""
        return {"input_tokens": response["count"]}

    def stream(self) -> StreamTranslation:
        """Raise TypeError: a count comes whole."""
        raise TypeError("the number of tokens is not streamed")

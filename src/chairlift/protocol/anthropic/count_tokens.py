"""CountTokensTranslator: serves /v1/messages/count_tokens by /tokenize."""

from collections.abc import Mapping, Sequence
from typing import Any

from chairlift.protocol.anthropic.request import MessageRequest, read_count_request
from chairlift.protocol.translation.base import EVENT_STREAM, ClientRequest, Json, StreamTranslation


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

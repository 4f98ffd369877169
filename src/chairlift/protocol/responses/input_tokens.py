"""InputTokensTranslator: serves /v1/responses/input_tokens, the count of a request's tokens, by /tokenize."""

from collections.abc import Mapping, Sequence
from typing import Any

from chairlift.protocol.request_fields import TOKENIZE
from chairlift.protocol.responses.request import read_response_request
from chairlift.protocol.responses.response_store import ResponseStore
from chairlift.protocol.responses.responses_request_fields import PATH as RESPONSES_PATH
from chairlift.protocol.responses.summary_request import summary_body
from chairlift.protocol.translation.base import EVENT_STREAM, ClientRequest, FieldNames, Json, StreamTranslation

PATH = f"{RESPONSES_PATH}/input_tokens"


class InputTokensTranslator:
    """Translates requests for a count; see Translator. They have the fields of a request for a response.

    `store` has the responses that a request may refer to.
    """

    inner_path = "/tokenize"

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    def translate(self, body: Mapping[str, Any], client: ClientRequest) -> "InputTokensTranslation":
        """See Translator."""
        request = read_response_request(body, self._store, client.tenant)
        chat = summary_body(request) if request.wants_compaction else request.chat
        counted = {name: value for name, value in chat.items() if name in TOKENIZE}
        return InputTokensTranslation(counted, request.ignored, request.names)


class InputTokensTranslation:
    """One translated request; see Translation."""

    stream_type = EVENT_STREAM

    def __init__(self, body: Json, ignored: Sequence[str], names: FieldNames) -> None:
        self.body, self.ignored, self.names = body, ignored, names

    def response(self, response: Json) -> Json:
        """See Translation."""
        return {"object": "response.input_tokens", "input_tokens": response["count"]}

    def stream(self) -> StreamTranslation:
        """Raise AssertionError: /tokenize sends no stream."""
        raise AssertionError("a count of tokens is no stream")

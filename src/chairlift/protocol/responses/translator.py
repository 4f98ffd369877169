"""ResponsesTranslator: serves /v1/responses by /v1/chat/completions."""

from collections.abc import Mapping, Sequence
from typing import Any

from chairlift.protocol.responses.compaction_response import CompactionResponse
from chairlift.protocol.responses.event_stream import ResponseEvents
from chairlift.protocol.responses.new_response import NewResponse
from chairlift.protocol.responses.request import ResponseRequest, read_response_request
from chairlift.protocol.responses.response_store import ResponseStore
from chairlift.protocol.translation.base import EVENT_STREAM, ClientRequest, Json, Translation


class ResponsesTranslator:
    """Translates requests of /v1/responses; see Translator. Responses are stored in `store`."""

    inner_path = "/v1/chat/completions"

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    def translate(self, body: Mapping[str, Any], client: ClientRequest) -> Translation:
        """See Translator."""
        request = read_response_request(body, self._store, client.tenant)
        translation = CompactionResponse if request.wants_compaction else ResponseTranslation
        return translation(request, self._store, client.tenant)


class ResponseTranslation:
    """One translated request; see Translation."""

    stream_type = EVENT_STREAM

    def __init__(self, request: ResponseRequest, store: ResponseStore, tenant: str) -> None:
        self._new = NewResponse(request, store, tenant)
        self.body, self.names = request.chat, request.names
        self.ignored: Sequence[str] = request.ignored

    def response(self, response: Json) -> Json:
        """See Translation."""
        translated = self._new.writer(response).whole(response)
        self._new.save(translated)
        return translated

    def stream(self) -> ResponseEvents:
        """See Translation."""
        return ResponseEvents(self._new.writer, self._new.save, self.body.get("model") or "")

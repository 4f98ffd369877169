"""OllamaTranslator and others: serve the routes of Ollama's API by those of the OpenAI API."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chairlift.protocol.ollama.answer_writer import AnswerWriter
from chairlift.protocol.ollama.embed_translation import EmbedTranslation
from chairlift.protocol.ollama.line_stream import AnswerLines
from chairlift.protocol.ollama.request import (
    OllamaRequest,
    read_chat_request,
    read_generate_request,
    read_raw_request,
)
from chairlift.protocol.translation.base import JSON_LINES, ClientRequest, Json

ReadRequest = Callable[[Mapping[str, Any]], OllamaRequest]


class GenerationTranslation:
    """One translated request for text; see Translation.

    Attributes:
        load_reason: what a request without a text is; "" for one with a text.
    """

    stream_type = JSON_LINES

    def __init__(self, request: OllamaRequest, client: ClientRequest, *, is_chat: bool) -> None:
        self._writer, self._client = AnswerWriter(request, is_chat=is_chat), client
        self.body, self.names, self.load_reason = request.body, request.names, request.load_reason
        self.ignored: Sequence[str] = request.ignored

    def response(self, response: Json) -> Json:
        """See Translation."""
        return self._writer.whole(response, self._client.first_token_at())

    def stream(self) -> AnswerLines:
        """See Translation."""
        return AnswerLines(self._writer, self._client.first_token_at)

    def loaded(self, model: str) -> Json:
        """Return the response to a request without a text; `model` is the served name of its model."""
        return self._writer.loaded(model)


class OllamaTranslator:
    """Translates requests of /api/chat or /api/generate; see Translator."""

    def __init__(self, inner_path: str, read: ReadRequest, *, is_chat: bool = False) -> None:
        self.inner_path = inner_path
        self._read, self._is_chat = read, is_chat

    def translate(self, body: Mapping[str, Any], client: ClientRequest) -> GenerationTranslation:
        """See Translator."""
        return GenerationTranslation(self._read(body), client, is_chat=self._is_chat)


class EmbedTranslator:
    """Translates requests of /api/embed, or of /api/embeddings with `has_one_prompt`; see Translator."""

    inner_path = "/v1/embeddings"

    def __init__(self, *, has_one_prompt: bool = False) -> None:
        self._has_one_prompt = has_one_prompt

    def translate(self, body: Mapping[str, Any], client: ClientRequest) -> EmbedTranslation:
        """See Translator."""
        return EmbedTranslation(body, has_one_prompt=self._has_one_prompt)


def chat_translator() -> OllamaTranslator:
    """Return the translator of /api/chat."""
    return OllamaTranslator("/v1/chat/completions", read_chat_request, is_chat=True)


def generate_translator() -> OllamaTranslator:
    """Return the translator of /api/generate."""
    return OllamaTranslator("/v1/chat/completions", read_generate_request)


def raw_translator() -> OllamaTranslator:
    """Return the translator of /api/generate with `raw`."""
    return OllamaTranslator("/v1/completions", read_raw_request)

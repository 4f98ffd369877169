"""translated_routes: the routes of other APIs that a server and a router have, around their own routes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from chairlift.protocol.anthropic.messages_request_fields import COUNT_PATH
from chairlift.protocol.anthropic.messages_request_fields import PATH as MESSAGES_PATH
from chairlift.protocol.anthropic.translator import CountTokensTranslator, MessagesTranslator
from chairlift.protocol.responses.compaction import CompactionTranslator
from chairlift.protocol.responses.compaction_request_fields import PATH as COMPACT_PATH
from chairlift.protocol.responses.conversation_reader import uses_stored_items
from chairlift.protocol.responses.input_tokens import PATH as INPUT_TOKENS_PATH
from chairlift.protocol.responses.input_tokens import InputTokensTranslator
from chairlift.protocol.responses.response_store import ResponseStore
from chairlift.protocol.responses.responses_request_fields import PATH as RESPONSES_PATH
from chairlift.protocol.responses.translator import ResponsesTranslator
from chairlift.protocol.translation.base import Translator
from chairlift.web.admission import AdmissionController
from chairlift.web.body import App
from chairlift.web.lifecycle import Lifecycle
from chairlift.web.route_entry import RouteEntry
from chairlift.web.service.http_config import HttpConfig
from chairlift.web.translation.ollama_routes import (
    MODELS_PATH,
    OLLAMA_WORK_PATHS,
    OllamaModels,
    ResolveModel,
    ollama_routes,
)
from chairlift.web.translation.stored_response_routes import StoredResponses
from chairlift.web.translation.translated_route import TranslatedRoute

TRANSLATED_PATHS = (RESPONSES_PATH, COMPACT_PATH, MESSAGES_PATH, *OLLAMA_WORK_PATHS)
"""Routes of other APIs that need the model."""


@dataclass(frozen=True, slots=True)
class InnerRoutes:
    """What routes of other APIs are served by.

    Attributes:
        routes: path of a route of the OpenAI API -> its application.
        config: limits of HTTP.
        lifecycle: says whether the service accepts requests.
        admission: queue of requests.
        is_strict: whether fields without effect are rejected.
        resolve_model: returns the served name that a request's name means; see OllamaRoute.
    """

    routes: Mapping[str, App]
    config: HttpConfig
    lifecycle: Lifecycle
    admission: AdmissionController
    resolve_model: ResolveModel
    is_strict: bool = False

    def translated(
        self, translator: Translator, is_slow: Callable[[bytes], bool] = lambda body: False
    ) -> TranslatedRoute:
        """Return the route of a translator; `is_slow` says which small bodies are slow to translate."""
        return TranslatedRoute(
            self.routes[translator.inner_path], translator, self.config, self.lifecycle, self.admission,
            self.is_strict, is_slow,
        )  # fmt: skip


def translated_routes(inner: InnerRoutes) -> list[RouteEntry]:
    """Return the routes of other APIs."""
    store = ResponseStore(inner.config.response_store_bytes, inner.config.max_body_bytes)
    stored = StoredResponses(store, inner.lifecycle)
    models = OllamaModels(
        inner.routes[MODELS_PATH], inner.config, inner.lifecycle, inner.resolve_model, inner.is_strict
    )  # fmt: skip
    return [
        ("POST", RESPONSES_PATH, inner.translated(ResponsesTranslator(store), uses_stored_items)),
        ("POST", COMPACT_PATH, inner.translated(CompactionTranslator(store), uses_stored_items)),
        ("POST", INPUT_TOKENS_PATH, inner.translated(InputTokensTranslator(store), uses_stored_items)),
        ("GET", f"{RESPONSES_PATH}/{{id}}", stored.retrieve),
        ("DELETE", f"{RESPONSES_PATH}/{{id}}", stored.delete),
        ("GET", f"{RESPONSES_PATH}/{{id}}/input_items", stored.input_items),
        ("POST", f"{RESPONSES_PATH}/{{id}}/cancel", stored.cancel),
        ("POST", MESSAGES_PATH, inner.translated(MessagesTranslator())),
        ("POST", COUNT_PATH, inner.translated(CountTokensTranslator())),
        *ollama_routes(inner.translated, models, inner.resolve_model),
    ]

"""ollama_routes: the routes of Ollama's API, around the routes of the OpenAI API."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from chairlift.core.errors import ModelNotFound
from chairlift.protocol.ollama import fields
from chairlift.protocol.ollama.embed_translation import EmbedTranslation
from chairlift.protocol.ollama.model_descriptions import OLLAMA_VERSION, running_models, shown_model, tags
from chairlift.protocol.ollama.request import is_raw, read_show_request
from chairlift.protocol.ollama.translator import (
    EmbedTranslator,
    GenerationTranslation,
    chat_translator,
    generate_translator,
    raw_translator,
)
from chairlift.protocol.translation.base import Json, Translator
from chairlift.web.body import App, Message, Receive, Scope, Send, parse_json_object, read_body, timeout_of
from chairlift.web.ignored_fields import ignored_fields_header
from chairlift.web.lifecycle import Lifecycle
from chairlift.web.route_entry import RouteEntry
from chairlift.web.send_response import send_object
from chairlift.web.service.http_config import HttpConfig
from chairlift.web.translation.translated_route import TranslatedRoute

OLLAMA_WORK_PATHS = (fields.CHAT_PATH, fields.GENERATE_PATH, fields.EMBED_PATH, fields.EMBEDDINGS_PATH)
"""Routes that need the model."""

ResolveModel = Callable[[str], str]

MODELS_PATH = "/v1/models"
NOT_READY = "no models, as no replica is ready"


@dataclass(frozen=True, slots=True)
class OllamaRoute:
    """A route that needs the model, unless a request has no text: then it only checks that there is the model.

    Attributes:
        rendered: serves requests whose prompts the chat template renders, and those for embeddings.
        raw: serves requests for text whose prompts it does not render; None where there are none.
        resolve_model: returns the served name that a request's name means. Raises ModelNotFound and InvalidRequest.
    """

    rendered: TranslatedRoute
    raw: TranslatedRoute | None
    resolve_model: ResolveModel

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request; see TranslatedRoute. Raises ModelNotFound."""
        request = await self.rendered.read(scope, receive)
        route = self.raw if self.raw is not None and is_raw(request.fields) else self.rendered
        translation = await route.translate(request, scope)
        if isinstance(translation, GenerationTranslation | EmbedTranslation) and translation.load_reason:
            timeout_of(scope, None)
            model = self.resolve_model(translation.body["model"])
            await send_object(send, translation.loaded(model), headers=route.ignored_header(translation))
            return
        await route.serve(translation, request, scope, receive, send)


class OllamaModels:
    """The routes that list and describe models, by those of the service's own /v1/models."""

    def __init__(
        self,
        list_models: App,
        config: HttpConfig,
        lifecycle: Lifecycle,
        resolve_model: ResolveModel,
        is_strict: bool,
    ) -> None:
        self._list, self._config, self._lifecycle, self._is_strict = list_models, config, lifecycle, is_strict
        self._resolve_model = resolve_model

    async def tags(self, scope: Scope, receive: Receive, send: Send) -> None:
        """List the models."""
        await send_object(send, tags(await self._cards(scope, receive)))

    async def running(self, scope: Scope, receive: Receive, send: Send) -> None:
        """List the models in memory, which are all."""
        await send_object(send, running_models(await self._cards(scope, receive)))

    async def show(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Describe a model. Raises InvalidRequest and ModelNotFound."""
        self._lifecycle.check()
        body = await read_body(
            scope, receive, max_bytes=self._config.max_body_bytes, seconds=self._config.body_timeout
        )  # fmt: skip
        name, ignored = read_show_request(parse_json_object(body))
        headers = ignored_fields_header(ignored, is_strict=self._is_strict)
        model = self._resolve_model(name)
        cards = {card["id"]: card for card in await self._cards(scope, receive)}
        if model not in cards:
            raise ModelNotFound(name, ", ".join(cards) or NOT_READY)
        await send_object(send, shown_model(cards[model]), headers=headers)

    async def version(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the version of Ollama's API that is served."""
        await send_object(send, {"version": OLLAMA_VERSION})

    async def _cards(self, scope: Scope, receive: Receive) -> list[Json]:
        """Return the models of /v1/models. Raises the errors of that route."""
        pieces: list[bytes] = []

        async def collect(message: Message) -> None:
            pieces.append(message.get("body", b""))

        inner: dict[str, Any] = {
            "method": "GET",
            "path": MODELS_PATH,
            "raw_path": MODELS_PATH.encode(),
            "query_string": b"",
        }
        self._lifecycle.check()
        await self._list({**scope, **inner}, receive, collect)
        cards: list[Json] = orjson.loads(b"".join(pieces))["data"]
        return cards


def ollama_routes(
    translated: Callable[[Translator], TranslatedRoute], models: OllamaModels, resolve_model: ResolveModel
) -> list[RouteEntry]:
    """Return the routes; `translated` makes the route of a translator, `resolve_model` as of OllamaRoute."""

    def work(translator: Translator, raw: Translator | None = None) -> OllamaRoute:
        return OllamaRoute(translated(translator), None if raw is None else translated(raw), resolve_model)

    return [
        ("POST", fields.CHAT_PATH, work(chat_translator())),
        ("POST", fields.GENERATE_PATH, work(generate_translator(), raw_translator())),
        ("POST", fields.EMBED_PATH, work(EmbedTranslator())),
        ("POST", fields.EMBEDDINGS_PATH, work(EmbedTranslator(has_one_prompt=True))),
        ("POST", fields.SHOW_PATH, models.show),
        ("GET", fields.TAGS_PATH, models.tags),
        ("GET", fields.PS_PATH, models.running),
        ("GET", fields.VERSION_PATH, models.version),
    ]

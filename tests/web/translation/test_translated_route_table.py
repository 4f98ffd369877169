"""translated_routes: other APIs around a service's own routes."""

from typing import Any

from chairlift.web.service.http_config import HttpConfig
from chairlift.web.translation.ollama_routes import OllamaRoute
from chairlift.web.translation.translated_route import TranslatedRoute
from chairlift.web.translation.translated_route_table import TRANSLATED_PATHS, InnerRoutes, translated_routes
from support_translation import open_admission, ready_lifecycle


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    """Serve nothing."""


def test_each_route_has_its_inner_route() -> None:
    names = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models", "/tokenize")
    inner = InnerRoutes(
        dict.fromkeys(names, nothing), HttpConfig(), ready_lifecycle(), open_admission(), lambda name: name, True
    )
    routes = translated_routes(inner)
    posts = [(path, app) for method, path, app in routes if method == "POST"]
    plain = {path: app.rendered if isinstance(app, OllamaRoute) else app for path, app in posts}
    translated = {path: app for path, app in plain.items() if isinstance(app, TranslatedRoute)}
    assert set(TRANSLATED_PATHS) <= translated.keys()
    assert all(app.inner is nothing and app.is_strict for app in translated.values())
    assert len({(method, path) for method, path, _ in routes}) == len(routes)

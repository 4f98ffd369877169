"""server_app: the application of one replica: its routes, within the middleware of every HTTP service."""

from collections.abc import Iterable
from functools import partial

from chairlift.protocol.batches.batch_fields import BATCH_ENDPOINTS
from chairlift.protocol.request_fields import CHAT, COMPLETION, POOLING_ROUTES
from chairlift.protocol.responses.responses_request_fields import PATH as RESPONSES_PATH
from chairlift.protocol.responses.responses_request_fields import RESPONSES
from chairlift.protocol.router_headers import ROUTER_HEADER
from chairlift.server.batch_room import BatchRoom
from chairlift.server.live.live_batch import live_batch
from chairlift.server.load_reporter import LoadReporter
from chairlift.server.metrics_and_admin_routes import AdminRoutes
from chairlift.server.openai import chat_completions, completions
from chairlift.server.openai.model_and_tokenizer_routes import ModelInfoRoutes
from chairlift.server.openapi import document
from chairlift.server.pooling.pooling_routes import READERS as POOLING_READERS
from chairlift.server.pooling.pooling_routes import PoolingRoute
from chairlift.server.replica import Replica
from chairlift.server.unknown_route import unknown_route
from chairlift.ui.static_files import static_files
from chairlift.web.auth.credentials import Credentials
from chairlift.web.batch_api.batch_api import BatchApi
from chairlift.web.batch_api.batch_models import BatchModels
from chairlift.web.body import App, Receive, Scope, Send, has_flag
from chairlift.web.error_responses import Header
from chairlift.web.request_info import request_info
from chairlift.web.route_entry import RouteEntry
from chairlift.web.service.docs_routes import DocsRoutes
from chairlift.web.service.http_app import HttpApp
from chairlift.web.service.http_process import Drain
from chairlift.web.service.live_feed import LiveFeed
from chairlift.web.service.page_routes import PageRoutes
from chairlift.web.translation.translated_route_table import TRANSLATED_PATHS, InnerRoutes, translated_routes

GENERATION_PATHS = (chat_completions.PATH, completions.PATH, *POOLING_READERS, *TRANSLATED_PATHS)
"""Routes that need the engine."""


PRIORITIZED_PATHS = tuple(
    path
    for path, fields in {
        chat_completions.PATH: CHAT, completions.PATH: COMPLETION, RESPONSES_PATH: RESPONSES, **POOLING_ROUTES,
    }.items()
    if "priority" in fields
)  # fmt: skip
"""Routes of BATCH_ENDPOINTS whose requests may have a priority."""

EMBEDDINGS = "/v1/embeddings"


def server_app(
    replica: Replica, credentials: Credentials, drain: Drain, host: str = "", *, is_loopback: bool = False
) -> HttpApp:  # fmt: skip
    """Return the application; `drain` starts the shutdown, `host` and `is_loopback` are as of HttpApp."""
    page = PageRoutes(static_files("server") if replica.config.http.ui else ())
    feed = live_batch(replica)
    own_routes = _routes(replica, drain, feed)
    batches = _batches(replica, own_routes)
    routes = [*own_routes, *batches.routes(), *page.routes()]
    return HttpApp(
        replica.config.http, credentials, routes, _not_found([path for _, path, _ in routes]),
        lifecycle=replica.lifecycle, admission=replica.admission, generation_paths=GENERATION_PATHS,
        on_response=replica.telemetry.record_response, host=host, is_loopback=is_loopback,
        open_paths=page.paths, tracer=replica.tracer,
        rejection_headers=lambda scope: _load_headers(scope, replica.reporter), live_feed=feed,
        batches=batches,
    )  # fmt: skip


def _batches(replica: Replica, routes: Iterable[RouteEntry]) -> BatchApi:
    """Return the files and batches, whose requests go to the routes of BATCH_ENDPOINTS."""
    config = replica.config
    return BatchApi(
        config.http, replica.lifecycle, {path: app for _, path, app in routes if path in BATCH_ENDPOINTS},
        BatchRoom(replica), BatchModels(replica.resolve_model, lambda: replica.reporter.fingerprint),
        on_response=replica.telemetry.record_response, tracer=replica.tracer,
        is_strict=config.reject_unknown_fields, prioritized_paths=PRIORITIZED_PATHS,
    )  # fmt: skip


def _routes(replica: Replica, drain: Drain, feed: LiveFeed) -> list[RouteEntry]:
    lifecycle, models, admin = replica.lifecycle, ModelInfoRoutes(replica), AdminRoutes(replica, drain)
    docs = DocsRoutes(partial(document, replica.config.served_names))
    chat, complete = chat_completions.ChatCompletions(replica), completions.Completions(replica)
    inner = InnerRoutes(
        {chat_completions.PATH: chat, completions.PATH: complete, EMBEDDINGS: PoolingRoute(replica, EMBEDDINGS),
         "/v1/models": models.list, "/tokenize": models.tokenize},
        replica.config.http, lifecycle, replica.admission, replica.resolve_model,
        replica.config.reject_unknown_fields,
    )  # fmt: skip
    return [
        ("POST", chat_completions.PATH, _with_load_header(chat, replica.reporter)),
        ("POST", completions.PATH, _with_load_header(complete, replica.reporter)),
        *(("POST", path, _with_load_header(PoolingRoute(replica, path), replica.reporter)) for path in POOLING_READERS),
        ("GET", "/v1/models", models.list),
        ("GET", "/v1/models/{id:path}", models.one),
        ("POST", "/tokenize", models.tokenize),
        ("POST", "/detokenize", models.detokenize),
        ("GET", "/tokenizer_info", models.tokenizer_info),
        ("GET", "/livez", lifecycle.livez),
        ("GET", "/readyz", lifecycle.readyz),
        ("GET", "/health", lifecycle.health),
        ("GET", "/ping", lifecycle.ping),
        ("GET", "/version", docs.version),
        ("GET", "/metrics", admin.metrics),
        ("GET", "/load", admin.load),
        ("GET", "/docs", docs.page),
        ("GET", "/openapi.json", docs.schema),
        ("POST", "/admin/drain", admin.drain),
        ("GET", "/admin/state", admin.state),
        ("GET", "/admin/debug", admin.debug),
        ("GET", "/admin/requests/{id}", admin.request),
        ("GET", "/admin/live", feed.stream),
        *translated_routes(inner),
    ]


def _load_headers(scope: Scope, reporter: LoadReporter) -> Iterable[Header]:
    """Return the header of the load for a router, none for other clients."""
    return reporter.headers() if has_flag(scope, ROUTER_HEADER) else ()


def _with_load_header(handle: App, reporter: LoadReporter) -> App:
    """Let every response to a router have the header of the load, errors too."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if has_flag(scope, ROUTER_HEADER):
            request_info(scope).response_headers = reporter.headers
        await handle(scope, receive, send)

    return app


def _not_found(paths: list[str]) -> App:
    """Return the application of every path that is not in `paths`."""
    fixed_paths = frozenset(path for path in paths if "{" not in path)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise unknown_route(scope["path"], fixed_paths)

    return app

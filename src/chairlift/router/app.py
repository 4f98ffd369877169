"""router_app: the application of the router: its own routes, and every other one passed on to a replica."""

from chairlift.protocol.batches.batch_fields import BATCH_ENDPOINTS
from chairlift.protocol.request_fields import POOLING_ROUTES
from chairlift.protocol.router_and_fleet_openapi import document
from chairlift.router.admin_and_status_routes import RouterAdminRoutes
from chairlift.router.batch_room import RoutedBatchRoom
from chairlift.router.extension import RouterExtension
from chairlift.router.forwarding import ForwardRoute
from chairlift.router.generation import GenerationRoute
from chairlift.router.live.live_fleet import live_fleet
from chairlift.router.live.replica_relay import ReplicaRelay
from chairlift.router.routed_batch_models import routed_batch_models
from chairlift.router.router import Router
from chairlift.ui.static_files import static_files
from chairlift.web.auth.credentials import Credentials
from chairlift.web.batch_api.batch_api import BatchApi
from chairlift.web.route_entry import RouteEntry
from chairlift.web.service.docs_routes import DocsRoutes
from chairlift.web.service.http_app import HttpApp
from chairlift.web.service.http_process import Drain
from chairlift.web.service.page_routes import PageRoutes
from chairlift.web.translation.translated_route_table import TRANSLATED_PATHS, InnerRoutes, translated_routes

TOKEN_PATHS = ("/v1/chat/completions", "/v1/completions")
"""Routes whose responses are made of tokens."""

GENERATION_PATHS = (*TOKEN_PATHS, *POOLING_ROUTES, *TRANSLATED_PATHS)
"""Routes that need the model."""


def router_app(
    router: Router, credentials: Credentials, drain: Drain, host: str = "", extension: RouterExtension | None = None,
    *, is_loopback: bool = False,
) -> HttpApp:  # fmt: skip
    """Return the application; `drain` starts the shutdown, `host` and `is_loopback` are as of HttpApp."""
    extension = extension or RouterExtension()
    generation, admin, lifecycle = GenerationRoute(router), RouterAdminRoutes(router, drain), router.lifecycle
    pooling = GenerationRoute(router, has_tokens=False)
    docs = DocsRoutes(lambda: document(router.model_names(), extension.operations))
    page = PageRoutes(static_files("router") if router.config.http.ui else ())
    feed = live_fleet(router, extension.topics)
    relay = ReplicaRelay(router, feed)
    forward = ForwardRoute(router)
    inner = InnerRoutes(
        {**dict.fromkeys(TOKEN_PATHS, generation), "/v1/embeddings": pooling, "/v1/models": admin.models,
         "/tokenize": forward},
        router.config.http, router.lifecycle, router.admission, router.resolve_model,
    )  # fmt: skip
    own_routes: list[RouteEntry] = [
        *(("POST", path, generation) for path in TOKEN_PATHS),
        *(("POST", path, pooling) for path in POOLING_ROUTES),
        ("GET", "/v1/models", admin.models),
        ("GET", "/v1/models/{id:path}", admin.model),
        ("GET", "/livez", lifecycle.livez),
        ("GET", "/readyz", lifecycle.readyz),
        ("GET", "/health", lifecycle.health),
        ("GET", "/ping", lifecycle.ping),
        ("GET", "/version", docs.version),
        ("GET", "/docs", docs.page),
        ("GET", "/openapi.json", docs.schema),
        ("GET", "/metrics", admin.metrics),
        ("GET", "/load", admin.load),
        ("POST", "/admin/drain", admin.drain),
        ("GET", "/admin/replicas", admin.replicas),
        ("GET", "/admin/debug", admin.debug),
        ("POST", "/admin/replicas/drain", admin.drain_replica),
        ("POST", "/admin/replicas/undrain", admin.undrain_replica),
        ("POST", "/admin/replicas/weight", admin.set_weight),
        ("GET", "/admin/live", feed.stream),
        ("GET", "/admin/replicas/debug", relay.debug),
        ("GET", "/admin/replicas/live", relay.live),
        *translated_routes(inner),
    ]
    batches = BatchApi(
        router.config.http, lifecycle, {path: app for _, path, app in own_routes if path in BATCH_ENDPOINTS},
        RoutedBatchRoom(router), routed_batch_models(router),
        on_response=router.telemetry.record_response, tracer=router.tracer,
    )  # fmt: skip
    routes = [*own_routes, *batches.routes(), *page.routes(), *extension.routes]
    return HttpApp(
        router.config.http, credentials, routes, forward, lifecycle=lifecycle,
        admission=router.admission, generation_paths=GENERATION_PATHS,
        on_response=router.telemetry.record_response, host=host, is_loopback=is_loopback,
        open_paths=page.paths, tracer=router.tracer, live_feed=feed, batches=batches,
    )  # fmt: skip

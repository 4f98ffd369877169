"""ServerApp: the ASGI application of one replica, its routes and the middleware around them.

request middleware (id, errors, access log) ──> cors ──> auth ──> router ──> route
"""

from collections.abc import Awaitable, Callable

from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route, Router

from chairlift.core.errors import ChairliftError, Overloaded
from chairlift.server.admin import AdminRoutes
from chairlift.server.openai import chat_completions, completions
from chairlift.server.openai.models import ModelRoutes
from chairlift.server.openapi import DocsRoutes
from chairlift.server.replica import Replica
from chairlift.server.unknown_route import unknown_route
from chairlift.web.admission import Permit
from chairlift.web.auth.credentials import Credentials
from chairlift.web.auth.host_check import HostCheck
from chairlift.web.auth.middleware import AuthMiddleware
from chairlift.web.body import App, Receive, Scope, Send, check_type
from chairlift.web.error_responses import Header
from chairlift.web.http_protocol import AcquirePermit, EarlyCheck, Rejection
from chairlift.web.middleware import RequestMiddleware

OPEN = frozenset({"/livez", "/readyz", "/health", "/ping"})
"""Paths that need no API key."""

GENERATION_PATHS = {path.encode(): path for path in (chat_completions.PATH, completions.PATH)}
"""Request target of each route that needs the engine, and its path."""

UNLOGGED_PATHS = OPEN | {"/metrics", "/load"}
"""Paths whose responses the access log omits, unless they fail."""


class ServerApp:
    """The ASGI application of one replica.

    Attributes:
        app: the application that uvicorn runs.
        auth: the check of keys and tokens, which may be replaced.
        early_check: admits or rejects a request to a generation route by its header block; None where CORS headers need
            the whole application.
    """

    def __init__(
        self, replica: Replica, credentials: Credentials, drain: Callable[[], Awaitable[None]], host: str = ""
    ) -> None:
        """Build the application; `drain` starts the shutdown, `host` is the name or address that it listens on."""
        config = replica.config
        routes = _routes(replica, drain)
        router = Router(routes, redirect_slashes=False, default=_not_found([each.path for each in routes]))
        open_paths = OPEN | ({"/metrics"} if config.public_metrics else set())
        host_check = HostCheck(config.allowed_hosts, (host,), config.cors_origins)
        self.auth = AuthMiddleware(_with_router(router), credentials, frozenset(open_paths), host_check)
        self._admission, self._lifecycle = replica.admission, replica.lifecycle
        self.early_check: EarlyCheck | None = None if config.cors_origins else self._early_check
        app: App = RequestMiddleware(self.auth, quiet=UNLOGGED_PATHS, on_response=replica.telemetry.record_response)
        if config.cors_origins:
            app = CORSMiddleware(
                app, allow_origins=config.cors_origins, allow_methods=("GET", "POST"), allow_headers=("*",),
                expose_headers=("x-request-id", "x-ignored-parameters", "retry-after", "retry-after-ms"),
            )  # fmt: skip
        self.app = app

    def _early_check(
        self, target: bytes, headers: list[Header], server: tuple[str, int | None] | None
    ) -> Rejection | AcquirePermit | None:
        """Admit or reject a request by its header block, which keeps a flood of requests cheap.

        A request that would be rejected earlier, for another reason, is left to the application.
        """
        path = GENERATION_PATHS.get(target)
        if path is None:
            return None
        scope = {"method": "POST", "path": path, "headers": headers, "server": server}
        try:
            self.auth.check_host(scope)
            self._lifecycle.check()
            tenant = self.auth.principal(scope).tenant
            check_type(scope)
        except ChairliftError:
            return None
        error = self._admission.rejection()
        return self._acquire_permit if error is None else Rejection(error, path, tenant)

    def _acquire_permit(self) -> Permit | None:
        try:
            return self._admission.admit(0)
        except Overloaded:  # another request took the place in the meantime; the application rejects this one
            return None


def _routes(replica: Replica, drain: Callable[[], Awaitable[None]]) -> list[Route]:
    lifecycle, models, admin = replica.lifecycle, ModelRoutes(replica), AdminRoutes(replica, drain)
    docs = DocsRoutes(replica)
    routes: list[tuple[str, str, App]] = [
        ("POST", chat_completions.PATH, chat_completions.ChatCompletions(replica)),
        ("POST", completions.PATH, completions.Completions(replica)),
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
        ("GET", "/admin/requests/{id}", admin.request),
    ]
    return [
        Route(path, _Endpoint(path.replace(":path", ""), handle), methods=[method]) for method, path, handle in routes
    ]


class _Endpoint:
    """Wraps a handler as an ASGI application, which Starlette does not wrap again."""

    def __init__(self, path: str, handle: App) -> None:
        self._path = path
        self._handle = handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route_path"] = self._path
        await self._handle(scope, receive, send)


def _with_router(router: Router) -> App:
    """Let the router raise its errors, so that RequestMiddleware can send them."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = router
        await router(scope, receive, send)

    return app


def _not_found(paths: list[str]) -> App:
    """Return the application of every path that is not in `paths`."""
    fixed_paths = frozenset(path for path in paths if "{" not in path)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise unknown_route(scope["path"], fixed_paths)

    return app

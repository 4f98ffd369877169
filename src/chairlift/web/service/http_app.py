"""HttpApp: the ASGI application of an HTTP service, its routes and the middleware around them.

request middleware (id, errors, access log) ──> cors ──> auth ──> router ──> route
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route, Router

from chairlift.core.errors import ChairliftError, Overloaded
from chairlift.observability.tracing.tracer import Tracer
from chairlift.web.access_log import AccessRecord
from chairlift.web.admission import AdmissionController, Permit
from chairlift.web.auth.credentials import Credentials
from chairlift.web.auth.host_check import HostCheck
from chairlift.web.auth.middleware import AuthMiddleware
from chairlift.web.batch_api.batch_api import BatchApi
from chairlift.web.body import App, Receive, Scope, Send, check_type
from chairlift.web.bounded_http_protocol import AcquirePermit, EarlyCheck, Rejection
from chairlift.web.error_responses import Header
from chairlift.web.lifecycle import Lifecycle
from chairlift.web.middleware import RequestMiddleware
from chairlift.web.request_info import request_info
from chairlift.web.route_entry import RouteEntry
from chairlift.web.service.http_config import HttpConfig
from chairlift.web.service.live_feed import LiveFeed

OPEN = frozenset({"/livez", "/readyz", "/health", "/ping"})
"""Paths that need no API key."""

LOCAL = frozenset({"/admin/live", "/admin/replicas/live"})
"""Paths of administrators that need no key where no key is known and only this machine reaches the service: they read
what the web page shows."""

UNLOGGED_PATHS = OPEN | {"/metrics", "/load"}
"""Paths whose responses the access log omits, unless they fail."""

EXPOSED_HEADERS = ("x-request-id", "x-trace-id", "x-ignored-parameters", "retry-after", "retry-after-ms")
"""Response headers that web pages of other origins may read."""


class HttpApp:
    """The application of a service.

    Attributes:
        asgi: the application that uvicorn runs.
        auth: the check of keys and tokens, whose credentials may be replaced.
        live_feed: the stream of live data, which the end of the process ends; None without one.
        batches: the files and batches, which the process runs in the background; None without them.
        early_check: admits or rejects a request to a generation route by its header block; None where CORS headers need
            the whole application.
    """

    def __init__(
        self, config: HttpConfig, credentials: Credentials, routes: Iterable[RouteEntry], not_found: App, *,
        lifecycle: Lifecycle, admission: AdmissionController, generation_paths: Collection[str],
        on_response: Callable[[AccessRecord], None], host: str = "", is_loopback: bool = False,
        open_paths: Collection[str] = (),
        rejection_headers: Callable[[Scope], Iterable[Header]] = lambda scope: (), tracer: Tracer | None = None,
        live_feed: LiveFeed | None = None, batches: BatchApi | None = None,
    ) -> None:  # fmt: skip
        """Build the application.

        `not_found` handles every other path, `generation_paths` need a permit, `host` is the name or address that the
        service listens on, `is_loopback` whether only this machine reaches it, `open_paths` need no key, as OPEN,
        `rejection_headers` returns headers of an early rejection, and `tracer` traces the requests that are not
        rejected early.
        """
        self.live_feed, self.batches = live_feed, batches
        self._lifecycle, self._admission, self._rejection_headers = lifecycle, admission, rejection_headers
        self._generation_paths = {path.encode(): path for path in generation_paths}
        by_path: dict[str, dict[str, App]] = {}
        for method, path, handle in routes:
            by_path.setdefault(path, {}).setdefault(method, handle)
        router = Router(
            [
                Route(path, _Endpoint(path.replace(":path", ""), handlers), methods=list(handlers))
                for path, handlers in by_path.items()
            ],
            redirect_slashes=False, default=not_found,
        )  # fmt: skip
        all_open = OPEN | frozenset(open_paths) | ({"/metrics"} if config.public_metrics else set())
        host_check = HostCheck(config.allowed_hosts, (host,), config.cors_origins)
        self.auth = AuthMiddleware(
            _with_router(router), credentials, all_open, host_check, LOCAL if is_loopback else frozenset()
        )
        self.early_check: EarlyCheck | None = None if config.cors_origins else self._early_check
        app: App = RequestMiddleware(self.auth, quiet=UNLOGGED_PATHS, on_response=on_response, tracer=tracer)
        if config.cors_origins:
            app = CORSMiddleware(
                app, allow_origins=config.cors_origins, allow_methods=("GET", "POST", "DELETE"), allow_headers=("*",),
                expose_headers=EXPOSED_HEADERS,
            )  # fmt: skip
        self.asgi = app

    def _early_check(
        self, target: bytes, headers: list[Header], server: tuple[str, int | None] | None
    ) -> Rejection | AcquirePermit | None:
        """Admit or reject a request by its header block, which keeps a flood of requests cheap.

        A request that would be rejected earlier, for another reason, is left to the application.
        """
        path = self._generation_paths.get(target)
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
        if error is None:
            return self._acquire_permit
        return Rejection(error, path, tenant, tuple(self._rejection_headers(scope)))

    def _acquire_permit(self) -> Permit | None:
        try:
            return self._admission.admit(0)
        except Overloaded:  # another request took the place in the meantime; the application rejects this one
            return None


class _Endpoint:
    """Makes the handlers of a path's methods an ASGI application, which Starlette does not wrap again."""

    def __init__(self, path: str, handlers: Mapping[str, App]) -> None:
        self._path = path
        self._handlers = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_info(scope).route_path = self._path
        method = scope["method"]
        await self._handlers["GET" if method == "HEAD" else method](scope, receive, send)


def _with_router(router: Router) -> App:
    """Let the router raise its errors, so that RequestMiddleware can send them."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = router
        await router(scope, receive, send)

    return app

"""App: the routes, and the layers around them.

front (id, errors, access log) ──> cors ──> auth ──> router ──> route
"""

from collections.abc import Awaitable, Callable

from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route, Router

from chairlift.core.errors import ChairliftError, NotFound, Overloaded
from chairlift.server.admin import Operations
from chairlift.server.openai import chat_completions, completions
from chairlift.server.openai.models import Models
from chairlift.server.openapi import Documentation
from chairlift.server.replica import Replica
from chairlift.web.admission import Permit
from chairlift.web.auth import Auth, KeyRing
from chairlift.web.body import App, Receive, Scope, Send, check_type
from chairlift.web.error_responses import Header
from chairlift.web.http_protocol import Admit, Gate, TurnedAway
from chairlift.web.middleware import Front

OPEN = frozenset({"/livez", "/readyz", "/health"})
"""Paths that need no key."""

WORK = {path.encode(): path for path in (chat_completions.PATH, completions.PATH)}
"""Targets that the engine works for."""

QUIET = OPEN | {"/metrics", "/load"}
"""Paths that are not in the access log while they work."""


class Door:
    """The application of one replica.

    Attributes:
        app: what uvicorn runs.
        auth: whose keys may be replaced.
        gate: before the routes that the engine works for; None where an answer needs more than its request's head.
    """

    def __init__(self, replica: Replica, keys: KeyRing, drain: Callable[[], Awaitable[None]]) -> None:
        """Put it together; `drain` begins to leave."""
        config = replica.config
        router = Router(_routes(replica, drain), redirect_slashes=False, default=_nowhere)
        open_paths = OPEN | ({"/metrics"} if config.open_metrics else set())
        self.auth = Auth(_named(router), keys, frozenset(open_paths))
        self._line, self._life = replica.line, replica.lifecycle
        self.gate: Gate | None = None if config.cors_origins else self._judge
        app: App = Front(self.auth, quiet=QUIET, seen=replica.telemetry.answered)
        if config.cors_origins:
            app = CORSMiddleware(
                app, allow_origins=config.cors_origins, allow_methods=("GET", "POST"), allow_headers=("*",),
                expose_headers=("x-request-id", "x-ignored-parameters", "retry-after", "retry-after-ms"),
            )  # fmt: skip
        self.app = app

    def _judge(self, target: bytes, headers: list[Header]) -> TurnedAway | Admit | None:
        """Let a request in, or refuse it, by its head: under a flood of them that has to cost little.

        Whatever would be refused before that, for another reason, is left to the application.
        """
        path = WORK.get(target)
        if path is None:
            return None
        scope = {"path": path, "headers": headers}
        try:
            self._life.check()
            tenant = self.auth.principal(scope).tenant
            check_type(scope)
        except ChairliftError:
            return None
        error = self._line.refusal()
        return self._admit if error is None else TurnedAway(error, path, tenant)

    def _admit(self) -> Permit | None:
        try:
            return self._line.admit(0)
        except Overloaded:  # by one who came with its body in the meantime; the application will say so
            return None


def _routes(replica: Replica, drain: Callable[[], Awaitable[None]]) -> list[Route]:
    life, models, operations = replica.lifecycle, Models(replica), Operations(replica, drain)
    documentation = Documentation(replica)
    table: list[tuple[str, str, App]] = [
        ("POST", chat_completions.PATH, chat_completions.ChatCompletions(replica)),
        ("POST", completions.PATH, completions.Completions(replica)),
        ("GET", "/v1/models", models.list),
        ("GET", "/v1/models/{id:path}", models.one),
        ("POST", "/tokenize", models.tokenize),
        ("POST", "/detokenize", models.detokenize),
        ("GET", "/livez", life.livez),
        ("GET", "/readyz", life.readyz),
        ("GET", "/health", life.health),
        ("GET", "/metrics", operations.metrics),
        ("GET", "/load", operations.load),
        ("GET", "/docs", documentation.page),
        ("GET", "/openapi.json", documentation.schema),
        ("POST", "/admin/drain", operations.drain),
        ("GET", "/admin/state", operations.state),
        ("GET", "/admin/requests/{id}", operations.request),
    ]
    return [
        Route(path, _Endpoint(path.replace(":path", ""), handle), methods=[method]) for method, path, handle in table
    ]


class _Endpoint:
    """A route as Starlette wants it: an application, which it leaves alone."""

    def __init__(self, path: str, handle: App) -> None:
        self._path = path
        self._handle = handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route_path"] = self._path
        await self._handle(scope, receive, send)


def _named(router: Router) -> App:
    """Let the router raise its refusals, so that the front can answer them."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = router
        await router(scope, receive, send)

    return app


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    raise NotFound("there is no such route")

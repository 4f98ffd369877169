"""AuthMiddleware: checks the key or token of a request; denies every path but a short open list by default."""

import logging

from chairlift.core.errors import Forbidden, Unauthorized
from chairlift.web.auth.credentials import Credentials, InvalidCredential
from chairlift.web.auth.host_check import HostCheck
from chairlift.web.auth.principal import ADMIN, USER, Principal
from chairlift.web.body import App, Receive, Scope, Send, all_headers
from chairlift.web.error_responses import no_route
from chairlift.web.request_info import request_info

log = logging.getLogger(__name__)

ADMIN_PATHS = "/admin/"


class AuthMiddleware:
    """Pass on requests with a valid key or token, and put their Principal into the RequestInfo.

    Attributes:
        credentials: the accepted keys and tokens; may be replaced at any time.
    """

    def __init__(
        self, app: App, credentials: Credentials, open_paths: frozenset[str], host_check: HostCheck | None = None,
        local_paths: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        """Wrap the application.

        `open_paths` need no key. `local_paths` are routes below /admin/ that need none while no key and no token is
        known; they are for a service that only its own machine can reach.
        """
        self._app = app
        self._host_check = HostCheck() if host_check is None else host_check
        self.credentials = credentials
        self._open, self._local = open_paths, local_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Identify the client, and pass the request on. Raises Unauthorized, Forbidden, NotFound."""
        self.check_host(scope)
        request_info(scope).principal = self.principal(scope)
        await self._app(scope, receive, send)

    def principal(self, scope: Scope) -> Principal:
        """Return the client's principal for the request's path. Raises Unauthorized, Forbidden, NotFound."""
        path = scope["path"]
        if path.startswith(ADMIN_PATHS):
            if path in self._local and not self.credentials.are_required and not self.credentials.has_admin:
                self._host_check.check_is_local(scope)
                return Principal()
            if not self.credentials.has_admin:
                raise no_route(path)
            if all_headers(scope, b"origin"):
                raise Forbidden("the admin routes reject requests from web pages (header Origin)")
            return self._authorize(scope, ADMIN, "this route needs an admin key, or a token with the role admin")
        if path in self._open or not self.credentials.are_required:
            return Principal()
        return self._authorize(
            scope, USER, "this route needs a key that is no admin key, or a token with the role user; "
            "admin keys are for the routes under /admin/",
        )  # fmt: skip

    def check_host(self, scope: Scope) -> None:
        """Raise Forbidden for a request that a web page of another site may have sent.

        Open paths answer every request: a health check may name an address that this machine does not know.
        """
        if scope["path"] in self._open:
            return
        is_keyless = not self.credentials.are_required
        if is_keyless or self._host_check.is_explicit:
            self._host_check.check_host(scope)
        if is_keyless:
            self._host_check.check_origin(scope)

    def _authorize(self, scope: Scope, needed_scope: str, message: str) -> Principal:
        """Return the principal. Raises Forbidden with this message if it lacks the scope."""
        principal = self._authenticate(scope)
        if needed_scope not in principal.scopes:
            log.info("rejected: tenant %s has no scope %s", principal.tenant, needed_scope)
            raise Forbidden(message)
        return principal

    def _authenticate(self, scope: Scope) -> Principal:
        credential = self._credential(scope)
        try:
            return self.credentials.authenticate(credential.strip())
        except InvalidCredential as error:
            raise self._unauthorized(str(error)) from None

    def _credential(self, scope: Scope) -> bytes:
        """Return the key or token of `Authorization: Bearer`, or of Anthropic's x-api-key where there is none."""
        values = all_headers(scope, b"authorization")
        keys = all_headers(scope, b"x-api-key")
        if not values and len(keys) == 1:
            return keys[0].strip()
        if len(values) != 1:
            raise self._unauthorized(f"{len(values)} authorization headers, {len(keys)} x-api-key headers")
        scheme, _, credential = values[0].partition(b" ")
        if scheme.lower() != b"bearer":
            raise self._unauthorized("another scheme than Bearer")
        return credential

    def _unauthorized(self, why: str) -> Unauthorized:
        log.info("rejected: %s", why)
        return Unauthorized("a valid API key is needed: Authorization: Bearer KEY")

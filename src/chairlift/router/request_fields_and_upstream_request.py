"""session_key_of, upstream_request_of, admin_headers: what routes read of a request and send with it."""

from collections.abc import Mapping, Sequence
from typing import Any

from chairlift.core.numeric_limits import MAX_HTTP_TIMEOUT_SECONDS
from chairlift.observability.tracing.gen_ai_attributes import gen_ai_attributes
from chairlift.router.proxy.attempt_spans import AttemptSpans
from chairlift.router.proxy.attempt_task import UpstreamRequest
from chairlift.web.auth.principal import ADMIN
from chairlift.web.body import Scope, header, timeout_of
from chairlift.web.error_responses import Header
from chairlift.web.request_info import request_info


def timeout_seconds(scope: Scope, fields: Mapping[str, Any]) -> float | None:
    """Return the seconds that a request may take; a replica reports an invalid field. Raises InvalidRequest."""
    timeout = fields.get("timeout")
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not 0 < timeout <= MAX_HTTP_TIMEOUT_SECONDS:
        timeout = None
    return timeout_of(scope, timeout)


def session_key_of(scope: Scope, fields: Mapping[str, Any], session_header: str, session_cookie: str) -> str:
    """Return what identifies a session: the header, the cookie, or the body's `user`; "" for none."""
    if value := header(scope, session_header.encode()):
        return value.decode("latin-1")
    if session_cookie and (cookies := header(scope, b"cookie")):
        for cookie in cookies.decode("latin-1").split(";"):
            name, _, value_text = cookie.strip().partition("=")
            if name == session_cookie and (found := value_text.strip('"')):
                return found
    user = fields.get("user")
    return user if isinstance(user, str) else ""


def model_member(fields: Mapping[str, Any], pool: str) -> Mapping[str, Any]:
    """Return the model's own name where a body names an alias, or no model."""
    model = fields.get("model")
    return {"model": pool} if pool and isinstance(model, str | None) and model != pool else {}


def attempt_spans(scope: Scope, fields: Mapping[str, Any], members: Mapping[str, Any]) -> AttemptSpans | None:
    """Return what makes the spans of the attempts of a request; None unless the request is sampled."""
    if (trace := request_info(scope).trace) is None:
        return None
    trace.server.attributes |= gen_ai_attributes(scope["path"], fields.get("model"))
    return AttemptSpans(trace, scope["path"], {**fields, **members}.get("model"))


def client_address(scope: Scope) -> str:
    """Return the IP address of the client, "" if unknown."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def upstream_request_of(
    scope: Scope, body: bytes | None, members: Mapping[str, Any], *, is_repeatable: bool = True
) -> UpstreamRequest:
    """Return the request as its attempts send it, with further members in its JSON body."""
    raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope.get("query_string", b"")
    target = raw_path.partition(b"?")[0].decode("latin-1") + (f"?{query.decode('latin-1')}" if query else "")
    return UpstreamRequest(
        method=scope["method"], target=target, headers=scope["headers"], body=body,
        request_id=request_info(scope).request_id, members=members, is_repeatable=is_repeatable,
    )  # fmt: skip


def admin_headers(scope: Scope, replica_id: str, num_attempts: int) -> Sequence[Header]:
    """Return the headers that tell an administrator which replica has answered."""
    principal = request_info(scope).authenticated
    if principal.tenant and ADMIN not in principal.scopes:
        return ()
    return ((b"x-chairlift-replica", replica_id.encode()), (b"x-chairlift-attempts", str(num_attempts).encode()))

"""ForwardRoute: passes any other request to a replica, so that routes that replicas add later are served, too."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from posixpath import normpath
from typing import Any

import orjson

from chairlift.core.errors import NotFound
from chairlift.router.attempts.generation_fields import GenerationFields
from chairlift.router.attempts.request_machine import RequestMachine
from chairlift.router.policies.routing_request import RoutingRequest
from chairlift.router.pool_picker import PoolPicker
from chairlift.router.prompt_prefix_and_length import count_prompt_tokens
from chairlift.router.proxy.client_writer import ClientWriter
from chairlift.router.proxy.request_proxy import RequestProxy
from chairlift.router.request_fields_and_upstream_request import (
    admin_headers,
    attempt_spans,
    client_address,
    model_member,
    session_key_of,
    timeout_seconds,
    upstream_request_of,
)
from chairlift.router.router import Router
from chairlift.web.auth.middleware import ADMIN_PATHS
from chairlift.web.body import Receive, Scope, Send, read_body
from chairlift.web.disconnect import DisconnectWatcher
from chairlift.web.request_info import request_info
from chairlift.web.write_timeout import WriteTimeout

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods whose requests may be repeated after they have reached a replica (RFC 9110, section 9.2.1)."""

REPEATABLE_PATHS = frozenset({"/tokenize", "/detokenize"})
"""Routes with POST that change nothing on a replica."""


class ForwardRoute:
    """Every path that is none of the router's own."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on. Raises NotFound for what is never passed on: routes of administrators, and `*`."""
        router, config = self._router, self._router.config
        if not scope["path"].startswith("/") or is_admin_path(scope["path"]):  # "*@host" would name another host
            raise NotFound(f"there is no route {scope['path'][:200]!r}")
        router.lifecycle.check()
        body: bytes | None = None
        if scope["method"] not in SAFE_METHODS:
            body = await read_body(
                scope, receive, max_bytes=config.http.max_body_bytes, seconds=config.http.body_timeout, any_type=True
            )
        fields = await _fields_of(body)
        session_key = session_key_of(scope, fields, config.session_header, config.session_cookie)
        info = request_info(scope)
        pool_key = session_key or info.request_id
        timeout = timeout_seconds(scope, fields)
        deadline = None if timeout is None else router.clock.now() + timeout
        if body is not None and scope["path"] in REPEATABLE_PATHS:
            await self._hold(scope, receive, body, fields, timeout)
        elif router.hold.is_enabled and not router.is_ready:
            raise router.hold.unavailable()
        needs_model = scope["path"] in REPEATABLE_PATHS and bool(fields)
        pool = router.choose_pool(fields.get("model"), pool_key, needs_model=needs_model)
        limits = config.attempts
        is_repeatable = scope["method"] in SAFE_METHODS or scope["path"] in REPEATABLE_PATHS
        if not is_repeatable:
            # What a lost request has done is unknown; one that a full replica has rejected has done nothing.
            limits = replace(limits, max_attempts=1, counts_rejections=False)
        members = model_member(fields, pool) if needs_model or fields.get("model") else {}
        machine = RequestMachine(
            GenerationFields(alias=(fields.get("model") or "") if members else ""), limits, router.budget(pool),
            request_id=info.request_id, deadline=deadline,
        )  # fmt: skip
        async with DisconnectWatcher(receive) as watcher:
            assigned = await router.assigned_replica(pool, session_key)
            routing = RoutingRequest(
                request_id=info.request_id, client_address=client_address(scope), session_key=session_key,
                assigned_replica_id=assigned,
            )  # fmt: skip
            with WriteTimeout(scope, send, config.http.write_timeout) as timed:
                writer = ClientWriter(timed.send, has_body=scope["method"] != "HEAD")
                proxy = RequestProxy(
                    machine, upstream_request_of(scope, body, members, is_repeatable=is_repeatable), router.upstream,
                    PoolPicker(router, routing, pool), writer, router.clock.now, lambda _: None,
                    partial(admin_headers, scope), attempt_spans(scope, fields, members),
                )  # fmt: skip
                info.was_submitted = True
                router.open_proxies.add(proxy)
                try:
                    await proxy.run()
                finally:
                    router.open_proxies.discard(proxy)
            watcher.response_complete()
            if proxy.reservation is not None:
                await router.assign_session(pool, session_key, proxy.reservation.replica_id, assigned)

    async def _hold(
        self, scope: Scope, receive: Receive, body: bytes, fields: Mapping[str, Any], timeout: float | None
    ) -> None:
        """Let a request wait while no replica is ready: only one that is known to need the model is worth a start."""
        router, config = self._router, self._router.config
        key = session_key_of(scope, fields, config.session_header, config.session_cookie)
        if not router.must_hold(fields.get("model"), key or request_info(scope).request_id):
            return
        permit = router.admission.admit(0, timeout=timeout, body_bytes=len(body))
        try:
            async with DisconnectWatcher(receive):
                await router.hold.wait(count_prompt_tokens(fields), timeout)
        finally:
            permit.end(0)


def is_admin_path(path: str) -> bool:
    """Return whether a replica might take a decoded path for one of its administration."""
    normal = normpath(f"/{path}").replace("//", "/")
    return f"{normal}/".startswith(ADMIN_PATHS)


async def _fields_of(body: bytes | None) -> dict[str, Any]:
    """Return the members of a body that is a JSON object, {} for any other body."""
    if not body or not body.lstrip(b" \t\r\n").startswith(b"{"):
        return {}
    try:
        fields = orjson.loads(body) if len(body) < 65_536 else await asyncio.to_thread(orjson.loads, body)
    except orjson.JSONDecodeError:
        return {}
    return fields if isinstance(fields, dict) else {}

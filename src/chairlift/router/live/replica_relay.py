"""ReplicaRelay: an administrator reads one replica's report and live data through the router.

Only the router knows the admin key of the replicas, and often only the router reaches them.
"""

import contextlib
from collections.abc import AsyncIterator
from urllib.parse import parse_qs

import aiohttp

from chairlift.core.errors import NotFound
from chairlift.core.router_errors import ReplicaFailed
from chairlift.core.validation import invalid_param
from chairlift.router.endpoint import Endpoint, ReplicaKind
from chairlift.router.health.probe import ProbeFailed, ReplicaClient
from chairlift.router.router import Router
from chairlift.web.body import Receive, Scope, Send
from chairlift.web.send_response import send_bytes
from chairlift.web.service.live_feed import HEARTBEAT_SECONDS, LiveFeed

REPORT_SECONDS = 6.0
"""Longest time of a replica's report, which waits for its engine for some seconds."""

MAX_REPORT_BYTES = 32 * 2**20
SILENT_SECONDS = 3 * HEARTBEAT_SECONDS
"""Seconds without a byte after which a replica's stream is ended."""

OK = 200


class ReplicaRelay:
    """The routes that read one replica with the admin key of the replicas."""

    def __init__(self, router: Router, feed: LiveFeed) -> None:
        self._router, self._feed = router, feed

    async def debug(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a replica's /admin/debug. Raises InvalidRequest, NotFound and ReplicaFailed."""
        endpoint, upstream = self._endpoint(scope), self._router.upstream
        client = ReplicaClient(
            session=upstream.session, endpoint=endpoint, timeout_seconds=REPORT_SECONDS,
            headers=upstream.admin_headers(),
        )  # fmt: skip
        try:
            status, _, body = await client.get("/admin/debug", MAX_REPORT_BYTES)
        except ProbeFailed as error:
            raise ReplicaFailed(f"the replica sent no report: {error}") from None
        _check_status(status)
        await send_bytes(send, body)

    async def live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events of a replica's /admin/live. Raises InvalidRequest, NotFound, ReplicaFailed and Overloaded."""
        endpoint, upstream = self._endpoint(scope), self._router.upstream
        if scope["method"] == "HEAD":
            await self._feed.stream(scope, receive, send)
            return
        timeout = aiohttp.ClientTimeout(total=None, connect=REPORT_SECONDS, sock_read=SILENT_SECONDS)
        try:
            async with upstream.session.get(
                f"{endpoint.url}/admin/live", headers=upstream.admin_headers(), allow_redirects=False, timeout=timeout
            ) as response:
                _check_status(response.status)
                await self._feed.relay(scope, receive, send, _chunks(response))
        except (aiohttp.ClientError, OSError) as error:
            raise ReplicaFailed(f"the replica sent no live data: {type(error).__name__}") from None

    def _endpoint(self, scope: Scope) -> Endpoint:
        """Return the replica of the query. A server of another kind never gets the admin key."""
        values = parse_qs(scope["query_string"].decode("latin-1")).get("replica_id", [])
        if len(values) != 1:
            raise invalid_param("replica_id", "must be the URL of a replica, as /admin/replicas lists it")
        if not self._router.upstream.has_admin_key:
            raise NotFound("the router has no admin key of its replicas; start it with --replica-admin-key-file")
        statuses = self._router.replicas.statuses(self._router.clock.now())
        is_ours = any(each.replica_id == values[0] and each.kind is ReplicaKind.CHAIRLIFT for each in statuses)
        endpoint = self._router.replicas.endpoint(values[0])
        if endpoint is None or not is_ours:
            raise NotFound("no replica that is a Chairlift server has this replica_id")
        return endpoint


async def _chunks(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield the bytes of a stream; one that is cut ends here, too, and its watcher connects again."""
    with contextlib.suppress(aiohttp.ClientError, OSError):
        async for chunk in response.content.iter_any():
            yield chunk


def _check_status(status: int) -> None:
    if status != OK:
        raise ReplicaFailed(
            f"the replica answered with status {status}; 401, 403 and 404 mean that the router's admin key of the "
            "replicas is not theirs, or that they have none"
        )

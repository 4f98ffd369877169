"""APIClient: reads and writes objects of one namespace; retries what may pass, and names the right that is missing."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

from chairlift.cluster.kubernetes.api_resources import Resource
from chairlift.core.cluster_errors import ClusterDenied, ClusterFailed
from chairlift.core.router_errors import DiscoveryFailed
from chairlift.web.registry.backoff import Backoff
from chairlift.web.registry.json_client import CALL_SECONDS, JSONClient, JSONClientConfig, JSONResponse
from chairlift.web.registry.kubernetes_client import list_objects

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 4
"""Attempts of a call that fails for a reason that may pass: no answer, a status of 500 and more, or 429."""

MAX_RETRY_AFTER_SECONDS = 10.0
"""Longest delay that the API server's Retry-After gets."""

MAX_OBJECTS = 5000
"""Most objects of a list."""

METHODS = {"get": "GET", "list": "GET", "update": "PUT", "patch": "PATCH"}
"""HTTP method of each verb that a Role's rule may have."""

MERGE_PATCH = {"content-type": "application/merge-patch+json"}
FROM_CACHE = [("resourceVersion", "0")]
"""Parameter of a read that the API server answers from its memory, perhaps a little late, without asking etcd."""


class APIClient:
    """Objects of one namespace. Each method raises ClusterFailed and ClusterDenied.

    `details["status"]` of an error is the status of the API server's answer. Without it there was none, and a write
    may have happened.
    """

    def __init__(
        self, config: JSONClientConfig, namespace: str, *, timeout_seconds: float = CALL_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep, rng: random.Random | None = None,
    ) -> None:  # fmt: skip
        """Create the client; it connects with the first call."""
        self._client = JSONClient(config)
        self._namespace = namespace
        self._timeout_seconds = timeout_seconds
        self._sleep = sleep
        self._rng = random.Random() if rng is None else rng

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def get(self, resource: Resource, name: str, *, from_cache: bool = False) -> Any:
        """Return an object."""
        return (await self._call("get", resource, name, params=FROM_CACHE if from_cache else ())).body

    async def list(self, resource: Resource, selector: str = "", *, from_cache: bool = False) -> list[Any]:
        """Return the objects that a label selector matches."""
        params = [("labelSelector", selector)] if selector else []
        get_page = partial(self._get_page, resource, FROM_CACHE if from_cache else [])
        try:
            found, _ = await list_objects(get_page, params, kind=resource.plural, limit=MAX_OBJECTS)
        except DiscoveryFailed as error:
            raise ClusterFailed(f"{self._client.base_url}: {error.message}") from None
        return list(found.values())

    async def replace(self, resource: Resource, name: str, body: Mapping[str, Any]) -> None:
        """Write an object; status 409 if `metadata.resourceVersion` is no longer its version."""
        await self._call("update", resource, name, body=body)

    async def patch(self, resource: Resource, name: str, body: Mapping[str, Any]) -> None:
        """Merge fields into an object; status 422 if `metadata.uid` is given and not its uid."""
        await self._call("patch", resource, name, body=body, headers=MERGE_PATCH)

    async def _get_page(
        self, resource: Resource, version: Sequence[tuple[str, str]], params: Sequence[tuple[str, str]]
    ) -> JSONResponse:
        is_first = all(name != "continue" for name, _ in params)  # the API server refuses a version with `continue`
        params = [*params, *(version if is_first else ())]
        return await self._call("list", resource, params=params, accepted=() if is_first else (HTTPStatus.GONE,))

    async def _call(
        self, verb: str, resource: Resource, name: str = "", *, params: Sequence[tuple[str, str]] = (),
        body: Any = None, headers: Mapping[str, str] | None = None, accepted: Sequence[int] = (),
    ) -> JSONResponse:  # fmt: skip
        backoff = Backoff(self._rng)
        num_unauthorized = 0
        for attempt in range(1, MAX_ATTEMPTS + 1):
            status, reason, delay = None, "", None
            try:
                response = await self._client.call(
                    METHODS[verb], resource.path(self._namespace, name), params=params, body=body,
                    headers=headers or {}, timeout_seconds=self._timeout_seconds,
                )  # fmt: skip
            except DiscoveryFailed as error:
                reason, asked = error.message, error.details.get("retry_after")
                delay = float(asked) if isinstance(asked, int | float) else None
            else:
                if response.status < HTTPStatus.MULTIPLE_CHOICES or response.status in accepted:
                    return response
                if response.status == HTTPStatus.UNAUTHORIZED and not num_unauthorized:
                    num_unauthorized += 1  # the token may have changed since it was read; the next call reads it again
                    continue
                if response.status != HTTPStatus.TOO_MANY_REQUESTS:
                    raise self._error_of(response, verb, resource, name)
                status, reason, delay = response.status, response.describe(), response.retry_after
            if attempt < MAX_ATTEMPTS:
                seconds = backoff.next_delay()
                seconds = seconds if delay is None else min(max(delay, seconds), MAX_RETRY_AFTER_SECONDS)
                log.info("%s of %s failed (%s); again in %.1f s", verb, resource.role_name, reason, seconds)
                await self._sleep(seconds)
        details = {} if status is None else {"status": status}
        raise ClusterFailed(
            f"{verb} of {_describe(resource, name)}: {MAX_ATTEMPTS} attempts failed: {reason}", **details
        )

    def _error_of(self, response: JSONResponse, verb: str, resource: Resource, name: str) -> ClusterFailed:
        """Return the error of a response that is not accepted."""
        status, body = response.status, response.body
        is_status_object = isinstance(body, Mapping) and body.get("kind") == "Status"
        text = str(body.get("message", ""))[:300] if is_status_object else response.describe()
        server, where = self._client.base_url, f"{_describe(resource, name)} in namespace {self._namespace}"
        if status == HTTPStatus.UNAUTHORIZED:
            message = f"{server} rejects the credentials (401 {text}); check the token file of the service account"
            return ClusterDenied(message, status=status)
        if status == HTTPStatus.FORBIDDEN:
            message = (
                f"{server} does not permit to {verb} {where}: {text}; the Role of the service account needs this rule: "
                f'{{apiGroups: ["{resource.group}"], resources: ["{resource.role_name}"], verbs: ["{verb}"]}}'
            )
            return ClusterDenied(message, status=status)
        if status == HTTPStatus.NOT_FOUND and not is_status_object:
            message = (
                f"{server} has no API {resource.group}/{resource.version} with {resource.plural}; is it installed?"
            )
            return ClusterFailed(message, status=status)
        if status == HTTPStatus.NOT_FOUND:
            return ClusterFailed(f"{server} has no {where}", status=status)
        return ClusterFailed(f"{server} does not {verb} {where}: {status} {text}", status=status)


def _describe(resource: Resource, name: str) -> str:
    return f"{resource.role_name} {name}" if name else resource.role_name

"""find_api_server, list_objects, open_watch, apply_event: Kubernetes objects, in pages and by the events of a watch."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from chairlift.core.errors import ConfigError
from chairlift.core.router_errors import DiscoveryFailed
from chairlift.web.registry.json_client import JSONClient, JSONClientConfig, JSONResponse
from chairlift.web.registry.registry_url import RegistryURL

SERVER_OPTIONS = ("server", "token_file", "ca_file")
"""Options of a URL that say how the API server is reached; without them it is that of the pod's cluster."""

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

PAGE_SIZE = 500
MAX_PAGES = 100
"""Pages that are read for one list, those of lists that expired included."""

WATCH_SECONDS = 240.0
"""Seconds after which the API server ends a watch, which then goes on from its last resource version."""

GetPage = Callable[[Sequence[tuple[str, str]]], Awaitable[JSONResponse]]
"""Gets a page of a list by its parameters; the response has status 200, or 410 for pages that have expired."""


class VersionExpired(Exception):
    """The API server no longer knows the changes since a resource version."""


def find_api_server(
    url: RegistryURL, environ: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT
) -> JSONClientConfig:
    """Return how the API server of the URL's options is reached, or that of the pod's cluster. Raises ConfigError."""
    token_file, ca_file, server = url.file("token_file"), url.file("ca_file"), url.options.get("server")
    if server is not None:
        parts = urlsplit(server)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path.strip("/"):
            raise ConfigError(f"the option server of {url.text!r} must look like https://10.0.0.1:6443, got {server!r}")
        base_url = server.rstrip("/")
    else:
        host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise ConfigError(
                f"{url.text!r} needs a pod of the cluster, whose environment has KUBERNETES_SERVICE_HOST; elsewhere "
                f"add ?server=https://host:6443&token_file=FILE&ca_file=FILE"
            )
        base_url = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        token_file, ca_file = token_file or service_account / "token", ca_file or service_account / "ca.crt"
    config = JSONClientConfig(base_urls=(base_url,), ca_file=ca_file, token_file=token_file)
    config.tls_context()
    return config


def parse_namespace(url: RegistryURL, form: str) -> str:
    """Return the namespace, which stands where other URLs have their host. Raises ConfigError."""
    namespace = url.require_one_host().removesuffix(":1")
    if ":" in namespace:
        raise ConfigError(f"{url.text!r} should look like {form}")
    return namespace


async def list_objects(
    get_page: GetPage, params: Sequence[tuple[str, str]], *, kind: str, limit: int
) -> tuple[dict[str, Any], str]:
    """Return the objects by name, and the resource version of the list.

    `kind` names the objects for messages. Raises DiscoveryFailed for more than `limit`, and for a malformed list.
    """
    objects: dict[str, Any] = {}
    token = ""
    for _ in range(MAX_PAGES):
        response = await get_page([*params, ("limit", str(PAGE_SIZE)), *([("continue", token)] if token else [])])
        if response.status == HTTPStatus.GONE and token:  # the pages have expired: begin with the first again
            objects, token = {}, ""
            continue
        if response.status != HTTPStatus.OK:
            raise DiscoveryFailed(f"the API server answers with {response.describe()}")
        try:
            version = str(response.body["metadata"]["resourceVersion"])
            objects |= {each["metadata"]["name"]: each for each in response.body["items"] or ()}
            token = response.body["metadata"].get("continue") or ""
        except (KeyError, TypeError, AttributeError) as error:
            raise DiscoveryFailed(f"the list of {kind} is malformed: {type(error).__name__}: {error}") from None
        if len(objects) > limit:
            raise DiscoveryFailed(f"the list has more than {limit} {kind}, the limit")
        if not token:
            return objects, version
    raise DiscoveryFailed(f"the list of {kind} has more than {MAX_PAGES} pages, the limit")


@contextlib.asynccontextmanager
async def open_watch(
    client: JSONClient, path: str, params: Sequence[tuple[str, str]], version: str, *, idle_seconds: float
) -> AsyncIterator[AsyncIterator[Any]]:
    """Watch objects from a resource version on. Raises VersionExpired and DiscoveryFailed."""
    params = [
        *params, ("watch", "1"), ("resourceVersion", version), ("allowWatchBookmarks", "true"),
        ("timeoutSeconds", f"{WATCH_SECONDS:.0f}"),
    ]  # fmt: skip
    try:
        async with client.stream("GET", path, params=params, idle_seconds=idle_seconds) as events:
            yield events
    except DiscoveryFailed as error:
        if error.details.get("status") == HTTPStatus.GONE:
            raise VersionExpired from None
        raise


def apply_event(objects: dict[str, Any], event: Any) -> str:
    """Apply an event of a watch and return its resource version. Raises VersionExpired and DiscoveryFailed."""
    try:
        kind, body = event["type"], event["object"]
        if kind == "ERROR":
            if body.get("code") == HTTPStatus.GONE:
                raise VersionExpired
            raise DiscoveryFailed(f"the watch failed: {str(body.get('message', ''))[:200]}")
        version = str(body["metadata"]["resourceVersion"])
        if kind in {"ADDED", "MODIFIED"}:
            objects[body["metadata"]["name"]] = body
        elif kind == "DELETED":
            objects.pop(body["metadata"]["name"], None)
        elif kind != "BOOKMARK":
            raise DiscoveryFailed(f"the watch has an event of the unknown type {str(kind)[:80]!r}")
        return version
    except (KeyError, TypeError, AttributeError) as error:
        raise DiscoveryFailed(f"an event of the watch is malformed: {type(error).__name__}: {error}") from None

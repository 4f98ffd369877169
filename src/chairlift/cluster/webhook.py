"""WebhookCluster: replicas that a program of the operator starts and stops, reached by HTTP.

    GET  URL   ──► [{"replica_id": "a", "state": "running", "url": "http://10.0.0.5:8000", ...}, ...]
    POST URL   {"target": 3, "remove": ["a"], "spec": {...} | null}   ──► any 2xx, once it is noted

The fields of a replica are those of ClusterReplica; replica_id and state are required, unknown fields are ignored. A
POST may be repeated after a failure, also by a later call that asks for the same; then it has the same header
`idempotency-key`. Without a spec nothing is started.
"""

import asyncio
import dataclasses
import math
import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

from chairlift.cluster.base import ReplicaSpec
from chairlift.cluster.cluster_replica import COUNTED_STATES, ClusterReplica, PlacementState
from chairlift.core.cluster_errors import ClusterDenied, ClusterFailed
from chairlift.core.errors import ConfigError
from chairlift.core.router_errors import DiscoveryFailed
from chairlift.observability.url_check_and_redaction import is_http_url
from chairlift.web.registry.backoff import Backoff
from chairlift.web.registry.json_client import JSONClient, JSONClientConfig, JSONResponse

MAX_REPLICAS = 10_000
MAX_ID_CHARS, MAX_TEXT_CHARS, MAX_URL_CHARS = 256, 4096, 2048
MAX_RETRY_AFTER_SECONDS = 30.0
"""Longest wait that the webhook's Retry-After is followed for; a call that cannot wait so long fails at once."""

LIST_SECONDS, CHANGE_SECONDS = 8.0, 18.0
"""Seconds for all attempts of a list, and of a change with the list before it; the controller waits little longer."""

RETRIED = frozenset({
    HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS,
})  # fmt: skip
"""Statuses below 500 after which a call is repeated."""

DENIED = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WebhookConfig:
    """How a webhook is reached.

    Attributes:
        url: http or https URL of both routes; it may have a query.
        token_file: file with the bearer token, read for each call; None for none.
        ca_file: PEM file of the CAs that sign the webhook's certificate; None for those of the system.
        cert_file: PEM file of the client's certificate chain, with key_file.
        key_file: PEM file of the private key of cert_file.
        timeout_seconds: seconds within which an attempt must be answered.
        list_seconds: seconds for all attempts of a list together.
        change_seconds: seconds for all attempts of a change together.
        num_attempts: attempts of a call.
        first_backoff: seconds before the second attempt at most; they double with each.
    """

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    timeout_seconds: float = 5.0
    list_seconds: float = LIST_SECONDS
    change_seconds: float = CHANGE_SECONDS
    num_attempts: int = 4
    first_backoff: float = 0.5

    def __post_init__(self) -> None:
        """Raise ConfigError for values that make no sense."""
        try:
            parts = urlsplit(self.url)
            is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.fragment
            _ = parts.port
        except ValueError:
            is_valid = False
        if not is_valid or not self.url.isprintable() or " " in self.url:
            raise ConfigError(f"the webhook's URL must look like https://host/path, got {self.url!r}")
        if parts.username is not None or parts.password is not None:
            raise ConfigError("the webhook's URL has a user name or password; a token belongs in the token file")
        for name in ("timeout_seconds", "first_backoff", "list_seconds", "change_seconds"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} of the webhook must be above 0 seconds, got {getattr(self, name)}")
        if self.num_attempts < 1:
            raise ConfigError(f"num_attempts of the webhook must be at least 1, got {self.num_attempts}")

    @property
    def base_url(self) -> str:
        """The URL without its query."""
        return self.url.partition("?")[0]

    @property
    def params(self) -> Sequence[tuple[str, str]]:
        """The URL's query."""
        return parse_qsl(urlsplit(self.url).query, keep_blank_values=True)


class WebhookCluster:
    """A Cluster behind a webhook."""

    def __init__(
        self, config: WebhookConfig, rng: random.Random | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Create it; `rng` varies the delays of retries. Raises ConfigError for TLS files that cannot be used."""
        self._config, self._rng, self._clock = config, rng or random.Random(), clock
        self._not_before = 0.0
        """When the webhook may be called again, by its last Retry-After."""
        self._failed_post: tuple[Any, str] | None = None
        """Body and idempotency key of the last POST, if it has failed."""
        self._client = JSONClient(JSONClientConfig(
            base_urls=(config.base_url,), ca_file=config.ca_file, cert_file=config.cert_file, key_file=config.key_file,
            token_file=config.token_file,
        ))  # fmt: skip
        self._lock = asyncio.Lock()
        """Held from a list to the scale that is computed from it."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def list(self) -> Sequence[ClusterReplica]:
        """Return the replicas that the webhook names."""
        return await self._list(self._clock() + self._config.list_seconds)

    async def _list(self, deadline: float) -> Sequence[ClusterReplica]:
        response = await self._call("GET", deadline)
        if response.status != HTTPStatus.OK or not isinstance(response.body, list):
            raise ClusterFailed(
                f"the webhook {self._config.base_url} answers no list of replicas: {response.describe()}"
            )
        try:
            return parse_replicas(response.body)
        except ValueError as error:
            raise ClusterFailed(f"the webhook {self._config.base_url} answers nonsense: {error}") from None

    async def start(self, spec: ReplicaSpec, count: int = 1) -> None:
        """Raise the target by `count` above the replicas that are listed as pending or running."""
        async with self._lock:
            deadline = self._clock() + self._config.change_seconds
            await self._scale(spec, len(_counted(await self._list(deadline))) + count, (), deadline)

    async def stop(self, replica_ids: Sequence[str]) -> None:
        """Remove those of these replicas that are pending or running, and lower the target by as many."""
        async with self._lock:
            deadline = self._clock() + self._config.change_seconds
            counted = _counted(await self._list(deadline))
            removed = [each for each in dict.fromkeys(replica_ids) if each in counted]
            if removed:
                await self._scale(None, len(counted) - len(removed), removed, deadline)

    async def scale(self, spec: ReplicaSpec, target: int, *, remove: Sequence[str] = ()) -> None:
        """Send the target, the replicas to remove, and the spec of those to start."""
        async with self._lock:
            await self._scale(spec, target, remove, self._clock() + self._config.change_seconds)

    async def release_failed(self) -> None:
        """Do nothing: what is held back after failures is up to the webhook."""

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _scale(self, spec: ReplicaSpec | None, target: int, remove: Sequence[str], deadline: float) -> None:
        wire_spec = None
        if spec is not None:
            wire_spec = dataclasses.asdict(spec) | {"environ": dict(spec.environ), "version": spec.version}
        body = {"target": target, "remove": list(remove), "spec": wire_spec}
        failed = self._failed_post
        key = failed[1] if failed is not None and failed[0] == body else uuid.uuid4().hex
        self._failed_post = body, key
        response = await self._call("POST", deadline, body, {"idempotency-key": key})
        self._failed_post = None  # the webhook has answered
        if not HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
            raise ClusterFailed(f"the webhook {self._config.base_url} does not scale: {response.describe()}")

    async def _call(
        self, method: str, deadline: float, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> JSONResponse:
        """Call the webhook until it answers with another status than those to retry.

        Raises ClusterDenied for statuses 401 and 403, and ClusterFailed when all attempts have failed, or the next one
        would begin after `deadline`.
        """
        config = self._config
        backoff = Backoff(self._rng, first_seconds=config.first_backoff, max_seconds=MAX_RETRY_AFTER_SECONDS)
        reason, num_made = "", 0
        for attempt in range(config.num_attempts):
            now = self._clock()
            wait_seconds = max(backoff.next_delay() if attempt else 0.0, self._not_before - now)
            if now + wait_seconds >= deadline:
                reason = reason or f"it has asked to be called again in {self._not_before - now:.1f} s"
                break
            if wait_seconds > 0:
                await asyncio.sleep(wait_seconds)
            num_made += 1
            try:
                response = await self._client.call(
                    method, "", params=config.params, body=body, headers=headers or {},
                    timeout_seconds=min(config.timeout_seconds, deadline - self._clock()),
                )  # fmt: skip
            except DiscoveryFailed as error:
                reason = error.message
                continue
            if response.status in DENIED:
                raise ClusterDenied(
                    f"the webhook {config.base_url} does not permit {method}: {response.describe()}; "
                    f"token file: {config.token_file or 'none'}"
                )
            if response.status not in RETRIED:
                return response
            reason = f"it answers {response.describe()}"
            self._not_before = self._clock() + _retry_after(response)
        attempts = "1 attempt" if num_made == 1 else f"{num_made} attempts"
        raise ClusterFailed(f"the webhook {config.base_url} cannot be used, after {attempts}: {reason}")


def parse_replicas(body: Sequence[Any]) -> Sequence[ClusterReplica]:
    """Parse a list of replicas. Raises ValueError that names the replica, its field and the value."""
    if len(body) > MAX_REPLICAS:
        raise ValueError(f"it lists {len(body)} replicas, the limit is {MAX_REPLICAS}")
    replicas = [_parse_replica(f"replica {number}", each) for number, each in enumerate(body)]
    if len({each.replica_id for each in replicas}) < len(replicas):
        raise ValueError("two replicas have the same replica_id")
    return replicas


def _parse_replica(place: str, body: Any) -> ClusterReplica:
    if not isinstance(body, dict):
        raise ValueError(f"{place} is not an object but {_quoted(body)}")
    replica_id = _text(place, body, "replica_id", MAX_ID_CHARS)
    if not replica_id:
        raise ValueError(f"{place} has no replica_id")
    place = f"replica {replica_id!r}"
    state = body.get("state")
    if state not in list(PlacementState):
        names = ", ".join(PlacementState)
        raise ValueError(f"state of {place} must be one of {names}, got {_quoted(state)}")
    age = body.get("age_seconds")
    age = 0.0 if age is None else age
    if isinstance(age, bool) or not isinstance(age, int | float) or not 0 <= age < math.inf:
        raise ValueError(f"age_seconds of {place} must be a number of at least 0, got {_quoted(age)}")
    return ClusterReplica(
        replica_id=replica_id, url=_url(place, body), state=PlacementState(state), age_seconds=float(age),
        version=_text(place, body, "version", MAX_ID_CHARS), node=_text(place, body, "node", MAX_ID_CHARS),
        replica_type=_text(place, body, "replica_type", MAX_ID_CHARS),
        reason=_text(place, body, "reason", MAX_TEXT_CHARS),
    )  # fmt: skip


def _text(place: str, body: Mapping[str, Any], name: str, limit: int) -> str:
    """Return a field's text, "" without the field. Raises ValueError."""
    value = body.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > limit or not value.isprintable():
        raise ValueError(f"{name} of {place} must be one line of at most {limit} characters, got {_quoted(value)}")
    return value


def _url(place: str, body: Mapping[str, Any]) -> str:
    url = _text(place, body, "url", MAX_URL_CHARS)
    if url and (" " in url or not is_http_url(url)):
        raise ValueError(f"url of {place} must be an http or https URL, got {_quoted(url)}")
    return url.rstrip("/")


def _counted(replicas: Sequence[ClusterReplica]) -> set[str]:
    """Return the ids of the replicas that a target counts."""
    return {each.replica_id for each in replicas if each.state in COUNTED_STATES}


def _retry_after(response: JSONResponse) -> float:
    try:
        seconds = float(response.headers.get("retry-after", "0"))
    except ValueError:  # a date
        return 0.0
    return min(seconds, MAX_RETRY_AFTER_SECONDS) if seconds > 0 else 0.0


def _quoted(value: Any) -> str:
    return repr(value)[:100]

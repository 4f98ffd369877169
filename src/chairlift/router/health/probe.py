"""probe_replica: asks one replica for its health, its load, its kind and its models.

It works with any OpenAI-compatible server: where /readyz is missing, /health is asked, then /v1/models. Every answer is
bounded in size and time.
"""

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp

from chairlift.core.load_report import ReplicaState
from chairlift.router.endpoint import Endpoint, ReplicaKind
from chairlift.router.health.replica_load import MAX_NAME_CHARS, ReplicaLoad, parse_load
from chairlift.router.health.served_models import ServedModels, parse_models

READYZ, HEALTH, MODELS, LOAD, VERSION = "/readyz", "/health", "/v1/models", "/load", "/version"
HEALTH_PATHS = (READYZ, HEALTH, MODELS)
"""Paths of a health check; a path that the server does not have is followed by the next one."""

NO_SUCH_ROUTE = frozenset({404, 405, 501})
UNAUTHORIZED = frozenset({401, 403})
TOO_MANY_REQUESTS = 429
SERVICE_UNAVAILABLE = 503

MAX_BODY_BYTES = 65_536
MAX_MODELS_BYTES = 2_097_152
"""Longest answer to /v1/models; hosted APIs list hundreds of models with descriptions."""

MODELS_INTERVAL_SECONDS = 60.0
"""How often a replica is asked for its models and its version, apart from a restart."""

CHAIRLIFT_LOAD_FIELDS = frozenset({"state", "waiting_tokens", "running_requests"})
"""Fields that only Chairlift's load report has together."""


class ProbeFailed(Exception):
    """A probe's answer is missing, too late, too long, or nonsense; the message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """What one probe found out.

    Attributes:
        is_success: whether the replica would serve a request.
        reason: the answer as a sentence.
        reported_state: the state that the replica reports about itself, None if it reports none.
        load: its load report, None if there is no new one, which says nothing about its health.
        kind: which server it is; AUTO if the probe did not find out.
        version: the server's version, "" if unknown.
        models: what it serves, None if it was not asked or did not say.
    """

    is_success: bool
    reason: str
    reported_state: ReplicaState | None = None
    load: ReplicaLoad | None = None
    kind: ReplicaKind = ReplicaKind.AUTO
    version: str = ""
    models: ServedModels | None = None


@dataclass(slots=True, kw_only=True)
class ProbeMemory:
    """What the next probe of a replica needs to know of the last ones.

    Attributes:
        health_path: the path of the last health check.
        kind: which server it is, once known.
        incarnation: id of its process in its last load report.
        models_at_seconds: monotonic time at which it was asked for its models.
    """

    health_path: str = READYZ
    kind: ReplicaKind = ReplicaKind.AUTO
    incarnation: str = ""
    models_at_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaClient:
    """A replica's address with what its requests need.

    Attributes:
        session: the client session, with the TLS settings towards replicas.
        endpoint: the replica.
        timeout_seconds: longest time of the health check, and of the other requests together.
        headers: headers of each request, such as the replica's API key.
    """

    session: aiohttp.ClientSession
    endpoint: Endpoint
    timeout_seconds: float
    headers: Mapping[str, str] = field(default_factory=dict)

    async def get(self, path: str, max_bytes: int = MAX_BODY_BYTES) -> tuple[int, str, bytes]:
        """Return status, content type and body of an answer. Raises ProbeFailed."""
        headers = {"accept": "application/json", "accept-encoding": "identity", **self.headers}
        try:
            async with self.session.get(
                self.endpoint.url + path, headers=headers, allow_redirects=False, auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=self.timeout_seconds),
            ) as response:  # fmt: skip
                body = bytearray()
                # One byte more than is allowed, so that a body over the limit differs from one that reaches it.
                while chunk := await response.content.read(max_bytes + 1 - len(body)):
                    body += chunk
                    if len(body) > max_bytes:
                        raise ProbeFailed(f"the answer to {path} is longer than {max_bytes} bytes")
                return response.status, response.content_type, bytes(body)
        except TimeoutError:
            raise ProbeFailed(f"{path} did not answer within {self.timeout_seconds:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ProbeFailed(f"{path} failed: {_describe(error)}") from None


def _describe(error: Exception) -> str:
    """Return what failed, without the address, which log lines of a replica begin with."""
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
        cause, number = error.os_error, error.os_error.errno or 0  # errors of name resolution have numbers below 0
        return f"no connection: {os.strerror(number) if number > 0 else cause.strerror or cause}"
    words = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}{words and f': {words}'}"


async def probe_replica(client: ReplicaClient, memory: ProbeMemory, now: float) -> ProbeResult:
    """Probe a replica once and update `memory`; takes at most two times the client's timeout."""
    explicit = client.endpoint.kind
    if explicit is not ReplicaKind.AUTO:
        memory.kind = explicit
    try:
        async with asyncio.timeout(client.timeout_seconds):
            result = await _check_health(client, memory)
    except TimeoutError:
        result = ProbeResult(is_success=False, reason=f"no answer within {client.timeout_seconds:g} s")
    except ProbeFailed as error:
        result = ProbeResult(is_success=False, reason=str(error))
    if not result.is_success:
        memory.kind, memory.models_at_seconds = explicit, None  # another server may be there when it returns
        return result
    details = _Details(client, memory, now)
    try:
        async with asyncio.timeout(client.timeout_seconds):
            await details.load_report()
            await details.version_and_models(result.models)
    except TimeoutError:
        pass  # a replica that answers /readyz is healthy; its last load report stays
    if details.nonsense:
        return ProbeResult(is_success=False, reason=details.nonsense)
    return ProbeResult(
        is_success=True, reason=result.reason, reported_state=result.reported_state, load=details.load,
        kind=memory.kind, version=details.version, models=details.models,
    )  # fmt: skip


async def _check_health(client: ReplicaClient, memory: ProbeMemory) -> ProbeResult:
    # The path that worked last time comes first, so a probe is usually one request.
    paths = [memory.health_path, *(path for path in HEALTH_PATHS if path != memory.health_path)]
    for path in paths:
        status, content_type, body = await client.get(path, MAX_MODELS_BYTES if path == MODELS else MAX_BODY_BYTES)
        if status not in NO_SUCH_ROUTE:
            memory.health_path = path
            return _judge(path, status, content_type, body, memory.kind)
    # The next probe begins anew: another server may be there by then.
    memory.health_path = READYZ
    raise ProbeFailed(f"none of {', '.join(HEALTH_PATHS)} exists; is the URL that of an OpenAI-compatible server?")


def _judge(path: str, status: int, content_type: str, body: bytes, kind: ReplicaKind) -> ProbeResult:
    """Return the verdict of a health check's answer. Raises ProbeFailed for nonsense."""
    answer = f"{path} answers {status}"
    if status in UNAUTHORIZED:
        raise ProbeFailed(f"{answer}; check the API key of the replica")
    # A server that limits its clients works; to take it out would send its load to the others.
    if status == TOO_MANY_REQUESTS:
        return ProbeResult(is_success=True, reason=answer)
    is_chairlift = path == READYZ and kind is ReplicaKind.CHAIRLIFT
    is_json = content_type.endswith("json") or is_chairlift or path == MODELS
    is_error = not 200 <= status < 300
    if is_error and status != SERVICE_UNAVAILABLE:
        raise ProbeFailed(answer)
    try:
        fields = json.loads(body) if is_json and body else None
    except (ValueError, RecursionError):
        if is_error:
            raise ProbeFailed(answer) from None
        raise ProbeFailed(f"{answer}, but its JSON cannot be read") from None
    state = fields.get("state") if path == READYZ and isinstance(fields, dict) else None
    reported_state = ReplicaState(state) if isinstance(state, str) and state in set(ReplicaState) else None
    if is_error or reported_state not in {None, ReplicaState.READY}:
        words = answer if reported_state is None else f"{answer}: the replica is {reported_state}"
        return ProbeResult(is_success=False, reason=words, reported_state=reported_state)
    if is_chairlift and reported_state is None:
        raise ProbeFailed(f"{answer}, but without the state of a Chairlift server")
    try:
        models = parse_models(fields) if path == MODELS else None
    except ValueError as error:
        raise ProbeFailed(str(error)) from None
    return ProbeResult(is_success=True, reason=answer, reported_state=reported_state, models=models)


class _Details:
    """The part of a probe that says nothing about health, unless a Chairlift server answers nonsense."""

    def __init__(self, client: ReplicaClient, memory: ProbeMemory, now: float) -> None:
        self.load: ReplicaLoad | None = None
        self.models: ServedModels | None = None
        self.version = ""
        self.nonsense = ""
        self._client, self._memory, self._now = client, memory, now

    async def load_report(self) -> None:
        """Ask for the load, and learn from the answer whether the replica is a Chairlift server."""
        memory = self._memory
        if memory.kind is ReplicaKind.OPENAI:
            return
        try:
            status, _, body = await self._client.get(LOAD)
        except ProbeFailed:
            return
        # Only a missing route tells that; any other failure may be over with the next probe.
        if status in NO_SUCH_ROUTE and memory.kind is ReplicaKind.AUTO:
            memory.kind = ReplicaKind.OPENAI
        if status != 200:
            return
        try:
            fields = json.loads(body)
            is_chairlift = isinstance(fields, dict) and fields.keys() >= CHAIRLIFT_LOAD_FIELDS
            if memory.kind is ReplicaKind.AUTO:
                memory.kind = ReplicaKind.CHAIRLIFT if is_chairlift else ReplicaKind.OPENAI
            if memory.kind is not ReplicaKind.CHAIRLIFT:
                return
            if not is_chairlift:
                raise ValueError(f"it has not the fields {', '.join(sorted(CHAIRLIFT_LOAD_FIELDS))}")
            self.load = parse_load(fields, self._now)
        except (ValueError, RecursionError) as error:
            if memory.kind is ReplicaKind.CHAIRLIFT:
                self.nonsense = f"{LOAD} answers nonsense: {str(error)[:200]}"
            return
        # A new process may serve other models, so it is asked at once.
        if self.load.incarnation != memory.incarnation:
            memory.incarnation, memory.models_at_seconds = self.load.incarnation, None

    async def version_and_models(self, models: ServedModels | None) -> None:
        """Ask for version and models if MODELS_INTERVAL_SECONDS have passed, or the process is a new one."""
        memory = self._memory
        self.models = models
        if memory.models_at_seconds is not None and self._now < memory.models_at_seconds + MODELS_INTERVAL_SECONDS:
            return
        if self.models is None:
            self.models = await self._get_models()
        self.version = await self._get_version()
        if self.models is not None:
            memory.models_at_seconds = self._now

    async def _get_models(self) -> ServedModels | None:
        try:
            status, _, body = await self._client.get(MODELS, MAX_MODELS_BYTES)
            return parse_models(json.loads(body)) if status == 200 else None
        except (ProbeFailed, ValueError, RecursionError):
            return None

    async def _get_version(self) -> str:
        try:
            status, _, body = await self._client.get(VERSION)
            fields = json.loads(body) if status == 200 else None
        except (ProbeFailed, ValueError, RecursionError):
            return ""
        version = fields.get("version") if isinstance(fields, dict) else None
        return version if isinstance(version, str) and len(version) <= MAX_NAME_CHARS else ""

"""Route: what a request is made into before it is worked for."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest, ModelNotFound
from chairlift.llm.output_processor import OutputProcessor
from chairlift.server.config import ServerConfig
from chairlift.server.openai import endpoint as module
from chairlift.server.openai.endpoint import RequestContext, handle_generation
from chairlift.server.openai.parse_request import CompletionRequest, read_completion
from chairlift.server.openai.response import CompletionRenderer
from chairlift.server.replica import Replica
from chairlift.web.auth import Principal
from support_server import run
from support_services import fake_service


@dataclass(frozen=True)
class Noted:
    """A job that is never done."""

    context: RequestContext[CompletionRequest]

    @property
    def timeout(self) -> float | None:
        return self.context.timeout

    @property
    def is_quick(self) -> bool:
        return True

    def processors(self) -> list[OutputProcessor]:
        return []

    def renderer(self, processors: Sequence[OutputProcessor]) -> CompletionRenderer:
        raise NotImplementedError


def made(monkeypatch: pytest.MonkeyPatch, *headers: tuple[bytes, bytes], **body: Any) -> list[Any]:
    """Send a body to the route; returns what it would have worked for."""
    seen: list[Any] = []

    async def generate(*arguments: Any) -> None:
        seen.append(arguments)

    monkeypatch.setattr(module, "generate", generate)

    async def send(message: Any) -> None:
        raise AssertionError("nothing is sent yet")

    async def ask() -> None:
        replica = Replica(ServerConfig(served_names=("m",)))
        replica.attach_service(fake_service(), lambda: None, 2048)
        wire = [{"type": "http.request", "body": json.dumps({"model": "m", "prompt": "x", **body}).encode()}]

        async def receive() -> Any:
            return wire.pop()

        scope = {"headers": list(headers), "request_id": "mine", "principal": Principal("alice")}
        try:
            await handle_generation(replica, scope, receive, send, read_completion, Noted)
        finally:
            await replica.close()

    run(ask())
    return seen


def test_a_job_knows_whose_it_is_and_how_long_it_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    ((replica, scope, *_, request, job, began),) = made(monkeypatch, (b"x-request-timeout-ms", b"1500"), timeout=9)
    assert isinstance(job, Noted) and job.context.replica is replica and job.context.request is request
    assert (job.context.request_id, job.context.tenant, job.timeout) == ("mine", "alice", 1.5)
    assert scope["request_id"] == "mine" and began > 0 and request.prompts == ("x",)


def test_what_is_not_served_becomes_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelNotFound):
        made(monkeypatch, model="other")
    with pytest.raises(InvalidRequest, match="n must be"):
        made(monkeypatch, n=0)
    with pytest.raises(InvalidRequest, match="x-request-timeout-ms"):
        made(monkeypatch, (b"x-request-timeout-ms", b"soon"))

"""Route: what both routes that generate do alike: read, look at the name of the model, make a job of it, run it."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from chairlift.llm.assembler import Assembler
from chairlift.server.generate import generate
from chairlift.server.parse import Asked
from chairlift.server.render import Renderer
from chairlift.server.replica import Replica
from chairlift.web.body import Receive, Scope, Send

A = TypeVar("A", bound=Asked)


@dataclass(slots=True)
class Task(ABC, Generic[A]):
    """A job (see generate.Job) for one body.

    Attributes:
        replica: that does it.
        asked: what the body says.
        request_id: its id.
        tenant: who asks.
        timeout: seconds that it may take, None for as long as it does.
    """

    replica: Replica
    asked: A
    request_id: str
    tenant: str
    timeout: float | None

    @abstractmethod
    def assemblers(self) -> list[Assembler]:
        """See generate.Job."""

    @abstractmethod
    def renderer(self, assemblers: Sequence[Assembler]) -> Renderer:
        """See generate.Job."""


class Route(ABC, Generic[A]):
    """A route that generates.

    Attributes:
        task: how it does so.
    """

    task: type[Task[A]]

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        began, replica = time.monotonic(), self._replica
        asked = await replica.read(scope, receive, self.read, is_work=True)
        replica.check_model(asked.model)
        timeout = replica.timeout(scope, asked.timeout)
        job = self.task(replica, asked, scope["request_id"], scope["principal"].tenant, timeout)
        await generate(replica, scope, receive, send, asked, job, began)

    @abstractmethod
    def read(self, body: dict[str, Any]) -> A:
        """Return what a body asks. Raises InvalidRequest."""

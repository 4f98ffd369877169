"""Route: what both routes that generate do alike: read, look at the name of the model, make a job of it, run it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from chairlift.server.openai.generation import Job, generate
from chairlift.server.openai.parse_request import Asked
from chairlift.server.replica import Replica
from chairlift.web.body import Receive, Scope, Send

AskedT = TypeVar("AskedT", bound=Asked)


@dataclass(frozen=True, slots=True)
class Task(Generic[AskedT]):
    """One body that is to be answered.

    Attributes:
        replica: that does it.
        asked: what the body says.
        request_id: its id.
        tenant: who asks.
        timeout: seconds that it may take, None for as long as it does.
    """

    replica: Replica
    asked: AskedT
    request_id: str
    tenant: str
    timeout: float | None

    def engine_id(self) -> str:
        """Return an id for one request of it."""
        return self.replica.engine_id(self.request_id)


async def answer(
    replica: Replica, scope: Scope, receive: Receive, send: Send, read: Callable[[dict[str, Any]], AskedT],
    job: Callable[[Task[AskedT]], Job],
) -> None:  # fmt: skip
    """Answer a request whose body `read` understands, by the job that is made of it. Raises as generate does."""
    began = time.monotonic()
    asked = await replica.read(scope, receive, read, is_work=True)
    replica.check_model(asked.model)
    timeout = replica.timeout(scope, asked.timeout)
    task = Task(replica, asked, scope["request_id"], scope["principal"].tenant, timeout)
    await generate(replica, scope, receive, send, asked, job(task), began)

"""The route /v1/completions: one prompt, or several, are completed."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from chairlift.llm.assembler import Assembler
from chairlift.server.generate import generate
from chairlift.server.parse import CompletionAsked, read_completion
from chairlift.server.render import CompletionRenderer, Named
from chairlift.server.replica import Replica
from chairlift.server.scores import CompletionScores
from chairlift.web.body import Receive, Scope, Send

PATH = "/v1/completions"


class Completions:
    """The route."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Complete one prompt, or several."""
        began, replica = time.monotonic(), self._replica
        asked = await replica.read(scope, receive, read_completion, is_work=True)
        replica.check_model(asked.model)
        job = _Job(
            replica, asked, scope["request_id"], scope["principal"].tenant, replica.timeout(scope, asked.timeout)
        )
        await generate(replica, scope, receive, send, asked, job, began)


@dataclass(slots=True)
class _Job:
    """See generate.Job."""

    replica: Replica
    asked: CompletionAsked
    request_id: str
    tenant: str
    timeout: float | None

    def assemblers(self) -> list[Assembler]:
        asked = self.asked
        return [
            self.replica.service.assembler(
                prompt, asked.params, request_id=self.replica.engine_id(self.request_id), priority=asked.priority,
                tenant=self.tenant, timeout=self.timeout, resume=asked.resume, cache_salt=asked.cache_salt,
            )
            for prompt in asked.prompts
        ]  # fmt: skip

    def renderer(self, assemblers: Sequence[Assembler]) -> CompletionRenderer:
        named = Named.of("cmpl", self.request_id, self.asked.model)
        return CompletionRenderer(self.asked, named, self._scores(assemblers))

    def _scores(self, assemblers: Sequence[Assembler]) -> list[CompletionScores] | None:
        params = self.asked.params
        if params.logprobs is None:
            return None
        return [
            CompletionScores(
                self.replica.pieces, each.request.prompt_token_ids if params.echo else None, params.logprobs,
                each.request.resumed(index),
            )
            for each in assemblers for index in range(params.n)
        ]  # fmt: skip

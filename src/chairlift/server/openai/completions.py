"""The route /v1/completions: one prompt, or several, are completed."""

from collections.abc import Sequence
from dataclasses import dataclass

from chairlift.llm.output_processor import Assembler
from chairlift.server.openai.endpoint import Task, answer
from chairlift.server.openai.logprobs import CompletionScores
from chairlift.server.openai.parse_request import CompletionAsked, read_completion
from chairlift.server.openai.response import CompletionRenderer, Named
from chairlift.server.replica import Replica
from chairlift.web.body import Receive, Scope, Send

PATH = "/v1/completions"


class Completions:
    """The route."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Complete one prompt, or several."""
        replica = self._replica
        await answer(replica, scope, receive, send, read_completion, _Job)


@dataclass(frozen=True, slots=True)
class _Job:
    """See generate.Job."""

    task: Task[CompletionAsked]

    @property
    def timeout(self) -> float | None:
        return self.task.timeout

    @property
    def is_quick(self) -> bool:
        return len(self.task.asked.prompts) == 1 and not self.task.asked.params.bad_words

    def assemblers(self) -> list[Assembler]:
        asked = self.task.asked
        return [
            self.task.replica.service.assembler(
                prompt, asked.params, request_id=self.task.engine_id(), priority=asked.priority,
                tenant=self.task.tenant, timeout=self.task.timeout, resume=asked.resume, cache_salt=asked.cache_salt,
            )
            for prompt in asked.prompts
        ]  # fmt: skip

    def renderer(self, assemblers: Sequence[Assembler]) -> CompletionRenderer:
        named = Named.of("cmpl", self.task.request_id, self.task.asked.model)
        return CompletionRenderer(self.task.asked, named, self._scores(assemblers))

    def _scores(self, assemblers: Sequence[Assembler]) -> list[CompletionScores] | None:
        params = self.task.asked.params
        if params.logprobs is None:
            return None
        return [
            CompletionScores(
                self.task.replica.pieces, each.request.prompt_token_ids if params.echo else None, params.logprobs,
                each.request.resumed_tokens(index),
            )
            for each in assemblers for index in range(params.n)
        ]  # fmt: skip

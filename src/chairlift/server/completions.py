"""The route /v1/completions: one prompt, or several, are completed."""

from collections.abc import Sequence
from typing import Any

from chairlift.llm.assembler import Assembler
from chairlift.server.parse import CompletionAsked, read_completion
from chairlift.server.render import CompletionRenderer, Named
from chairlift.server.route import Route, Task
from chairlift.server.scores import CompletionScores

PATH = "/v1/completions"


class _Completion(Task[CompletionAsked]):
    """What goes on behind one prompt, or several."""

    __slots__ = ()

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


class Completions(Route[CompletionAsked]):
    """The route."""

    task = _Completion

    def read(self, body: dict[str, Any]) -> CompletionAsked:
        """See Route."""
        return read_completion(body)

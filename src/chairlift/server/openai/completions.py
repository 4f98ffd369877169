"""Completions: serves the route /v1/completions for one prompt or several."""

from collections.abc import Sequence
from dataclasses import dataclass

from chairlift.core.item_errors import item_in_errors
from chairlift.llm.output_processor import OutputProcessor
from chairlift.llm.text_service import PROMPT_FIELDS
from chairlift.protocol.request_fields import DEFAULT_COMPLETION_TOKENS
from chairlift.server.openai.completion_request import CompletionRequest, read_completion
from chairlift.server.openai.generation_handler import RequestContext, handle_generation
from chairlift.server.openai.logprobs import CompletionLogprobs
from chairlift.server.openai.response_renderers import CompletionRenderer, ResponseMeta
from chairlift.server.replica import Replica
from chairlift.web.body import Receive, Scope, Send

PATH = "/v1/completions"


class Completions:
    """The route /v1/completions."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Complete one prompt, or several."""
        replica = self._replica
        await handle_generation(replica, scope, receive, send, read_completion, _CompletionHandler)


@dataclass(frozen=True, slots=True)
class _CompletionHandler:
    """Prepares and renders one completion request; see EndpointHandler."""

    context: RequestContext[CompletionRequest]

    @property
    def is_quick(self) -> bool:
        return len(self.context.request.prompts) == 1 and not self.context.request.params.bad_words

    def processors(self) -> list[OutputProcessor]:
        request, service = self.context.request, self.context.replica.service
        default_max_tokens = None if request.fills_context else DEFAULT_COMPLETION_TOKENS
        processors = []
        for index, prompt in enumerate(request.prompts):
            with item_in_errors("prompt", index, len(request.prompts), PROMPT_FIELDS):
                processors.append(service.prepare_completion(
                    prompt, request.params, default_max_tokens=default_max_tokens,
                    **self.context.engine_options(request.resumed_choices(index)),
                ))  # fmt: skip
        return processors

    def renderer(self, processors: Sequence[OutputProcessor]) -> CompletionRenderer:
        meta = ResponseMeta.of("cmpl", self.context.request_id, self.context.request.model)
        num_prompt_tokens = sum(len(each.request.prompt_token_ids) for each in processors)
        return CompletionRenderer(self.context.request, meta, self._logprobs_formatters(processors), num_prompt_tokens)

    def _logprobs_formatters(self, processors: Sequence[OutputProcessor]) -> list[CompletionLogprobs] | None:
        params = self.context.request.params
        if params.logprobs is None:
            return None
        return [
            CompletionLogprobs(
                self.context.replica.formats.token_pieces, each.request.prompt_token_ids if params.echo else None,
                params.logprobs, each.request.resumed_tokens(index),
            )
            for each in processors for index in range(params.n)
        ]  # fmt: skip

"""ChatCompletions: serves the route /v1/chat/completions."""

from collections.abc import Sequence
from dataclasses import dataclass

from chairlift.llm.output_processor import OutputProcessor
from chairlift.server.openai.chat_delta import ChatDeltaBuilder
from chairlift.server.openai.endpoint import RequestContext, handle_generation
from chairlift.server.openai.logprobs import ChatLogprobs
from chairlift.server.openai.parse_request import ChatRequest, read_chat
from chairlift.server.openai.response import ChatRenderer, ResponseMeta
from chairlift.server.openai.template_messages import template_input
from chairlift.server.replica import Replica
from chairlift.text.reasoning_parser import OPEN, ReasoningParser
from chairlift.web.body import Receive, Scope, Send

PATH = "/v1/chat/completions"


class ChatCompletions:
    """The route /v1/chat/completions."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Generate the assistant's next message of a conversation."""
        replica = self._replica
        await handle_generation(
            replica, scope, receive, send, lambda body: read_chat(body, replica.tool_format), _ChatHandler
        )


@dataclass(frozen=True, slots=True)
class _ChatHandler:
    """Prepares and renders one chat request; see EndpointHandler."""

    context: RequestContext[ChatRequest]

    @property
    def is_quick(self) -> bool:
        return False  # a chat template may run for any time

    def processors(self) -> list[OutputProcessor]:
        request, replica, choice = self.context.request, self.context.replica, self.context.request.tools
        messages, tools = template_input(
            request.messages, None if choice is None else choice.tools, replica.tool_format, replica.template
        )
        return [replica.service.prepare_chat(
            messages, request.params, tools=tools, prefill="" if choice is None else choice.prefill,
            **self.context.engine_options(),
        )]  # fmt: skip

    def renderer(self, processors: Sequence[OutputProcessor]) -> ChatRenderer:
        request, top = self.context.request, self.context.request.params.logprobs
        logprobs_formatter = (
            ChatLogprobs(self.context.replica.token_pieces, top) if request.logprobs and top is not None else None
        )
        meta = ResponseMeta.of("chatcmpl", self.context.request_id, request.model)
        return ChatRenderer(request, meta, logprobs_formatter, self._delta_builders(processors[0]))

    def _delta_builders(self, processor: OutputProcessor) -> Sequence[ChatDeltaBuilder]:
        """Return one delta builder for each choice; structured output is not searched for reasoning.

        A resumed stream first feeds each builder the text that was delivered before.
        """
        tools = self.context.request.tools
        parses_reasoning = self.context.replica.is_reasoning_model and self.context.request.params.structured is None
        inside = (processor.prompt or "").rstrip().endswith(OPEN)
        builders = [
            ChatDeltaBuilder(
                None if tools is None else tools.make_parser(),
                ReasoningParser(inside=inside) if parses_reasoning else None,
                allows_parallel_calls=tools is None or tools.allows_parallel_calls,
                num_id_chars=0 if tools is None or tools.tool_format is None else tools.tool_format.num_id_chars,
            )
            for _ in range(self.context.request.params.n)
        ]
        for index, builder in enumerate(builders if self.context.request.stream else ()):
            builder.push(processor.resumed_text(index))
        return builders

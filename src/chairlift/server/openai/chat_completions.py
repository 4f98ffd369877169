"""ChatCompletions: serves the route /v1/chat/completions."""

import dataclasses
import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from chairlift.llm.output_processor import OutputProcessor
from chairlift.server.openai.chat_delta import ChatDeltaBuilder
from chairlift.server.openai.chat_request import ChatRequest, read_chat
from chairlift.server.openai.generation_handler import RequestContext, handle_generation
from chairlift.server.openai.logprobs import ChatLogprobs
from chairlift.server.openai.response_renderers import ChatRenderer, ResponseMeta
from chairlift.server.replica import Replica
from chairlift.text.reasoning_formats import ReasoningState
from chairlift.text.reasoning_parser import ReasoningParser
from chairlift.web.body import Receive, Scope, Send

PATH = "/v1/chat/completions"


class ChatCompletions:
    """The route /v1/chat/completions."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Generate the assistant's next message of a conversation."""
        replica = self._replica
        await handle_generation(replica, scope, receive, send, self._read, _ChatHandler)

    def _read(self, body: dict[str, Any]) -> ChatRequest:
        return read_chat(body, self._replica.formats.tool_format, self._replica.service.chat_template)


@dataclass(frozen=True, slots=True)
class _ChatHandler:
    """Prepares and renders one chat request; see EndpointHandler."""

    context: RequestContext[ChatRequest]

    @property
    def is_quick(self) -> bool:
        return False  # a chat template may run for any time

    def processors(self) -> list[OutputProcessor]:
        request, replica, choice = self.context.request, self.context.replica, self.context.request.tools
        formats = replica.formats
        messages, tools = formats.template_input(request.messages, None if choice is None else choice.tools)
        params = request.params
        if formats.has_special_reasoning_markers:
            params = dataclasses.replace(params, skip_special_tokens=False)
        return [replica.service.prepare_chat(
            messages, params, is_checked=True, tools=tools, prefill="" if choice is None else choice.prefill,
            rendering=request.rendering, **self.context.engine_options(),
        )]  # fmt: skip

    def renderer(self, processors: Sequence[OutputProcessor]) -> ChatRenderer:
        request, top = self.context.request, self.context.request.params.logprobs
        logprobs_formatter = (
            ChatLogprobs(self.context.replica.formats.token_pieces, top)
            if request.logprobs and top is not None
            else None
        )
        num_prompt_tokens = len(processors[0].request.prompt_token_ids)
        meta = ResponseMeta.of("chatcmpl", self.context.request_id, request.model)
        return ChatRenderer(request, meta, logprobs_formatter, self._delta_builders(processors[0]), num_prompt_tokens)

    def _delta_builders(self, processor: OutputProcessor) -> Sequence[ChatDeltaBuilder]:
        """Return one delta builder for each choice.

        Structured output is not searched for reasoning, unless it is a forced call, which allows it.
        A resumed stream first feeds each builder the text that was delivered before.
        """
        tools = self.context.request.tools
        builders = [
            ChatDeltaBuilder(
                None if tools is None else tools.make_parser(),
                self._reasoning_parser(processor),
                includes_reasoning=self.context.request.includes_reasoning,
                allows_parallel_calls=tools is None or tools.allows_parallel_calls,
                num_id_chars=0 if tools is None or tools.tool_format is None else tools.tool_format.num_id_chars,
                call_key=partial(self._call_key, processor, index),
            )
            for index in range(self.context.request.params.n)
        ]
        for index, builder in enumerate(builders if self.context.request.stream else ()):
            builder.push(processor.resumed_text(index))
        return builders

    def _call_key(self, processor: OutputProcessor, index: int) -> bytes:
        """Return the key of a choice's tool call ids: equal where the same request goes on on another replica.

        The prompt is a part of it, because clients repeat request ids from one turn of a conversation to the next.
        """
        digest = hashlib.sha256(f"{self.context.request_id} {index} ".encode())
        digest.update(array("I", processor.request.prompt_token_ids).tobytes())
        return digest.digest()

    def _reasoning_parser(self, processor: OutputProcessor) -> ReasoningParser | None:
        """Make the parser of one choice's reasoning; None where the output has none, or its tool parser reads it."""
        reasoning, state = self.context.replica.formats.reasoning_format, processor.reasoning_state
        structured = processor.request.params.structured
        if reasoning is None or reasoning.is_read_by_tool_format or state is ReasoningState.ENDED:
            return None
        if structured is not None:  # its grammar allows reasoning only behind a start
            if structured.reasoning_prefix is None:
                return None
            reasoning = dataclasses.replace(reasoning, is_always_open=False)
        return ReasoningParser(reasoning, is_open=state is ReasoningState.OPEN)

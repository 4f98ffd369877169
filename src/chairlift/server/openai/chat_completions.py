"""The route /v1/chat/completions: a conversation is answered."""

from collections.abc import Sequence
from dataclasses import dataclass

from chairlift.llm.output_processor import Assembler
from chairlift.server.openai.chat_delta import Voice
from chairlift.server.openai.endpoint import Task, answer
from chairlift.server.openai.logprobs import ChatScores
from chairlift.server.openai.parse_request import ChatAsked, read_chat
from chairlift.server.openai.response import ChatRenderer, Named
from chairlift.server.openai.tool_choice import parsed_arguments
from chairlift.server.replica import Replica
from chairlift.text.reasoning_parser import OPEN, Reasoning
from chairlift.text.tool_parser import ToolCalls
from chairlift.web.body import Receive, Scope, Send

PATH = "/v1/chat/completions"


class ChatCompletions:
    """The route."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a conversation."""
        replica = self._replica
        await answer(replica, scope, receive, send, lambda body: read_chat(body, replica.notation), _Job)


@dataclass(frozen=True, slots=True)
class _Job:
    """See generate.Job."""

    task: Task[ChatAsked]

    @property
    def timeout(self) -> float | None:
        return self.task.timeout

    @property
    def is_quick(self) -> bool:
        return False  # a template may do anything

    def assemblers(self) -> list[Assembler]:
        asked, tools = self.task.asked, self.task.asked.tools
        return [self.task.replica.service.chat_assembler(
            parsed_arguments(asked.messages), asked.params, request_id=self.task.engine_id(),
            priority=asked.priority, tenant=self.task.tenant, timeout=self.task.timeout, resume=asked.resume,
            tools=None if tools is None else tools.tools, prefill="" if tools is None else tools.prefill,
            cache_salt=asked.cache_salt,
        )]  # fmt: skip

    def renderer(self, assemblers: Sequence[Assembler]) -> ChatRenderer:
        asked, top = self.task.asked, self.task.asked.params.logprobs
        scores = ChatScores(self.task.replica.pieces, top) if asked.logprobs and top is not None else None
        named = Named.of("chatcmpl", self.task.request_id, asked.model)
        return ChatRenderer(asked, named, scores, self._voices(assemblers[0]))

    def _voices(self, assembler: Assembler) -> Sequence[Voice]:
        """Return one for each choice; what a structure holds together is not looked through for reasoning.

        A stream that is resumed goes on where its voices were.
        """
        tools = self.task.asked.tools
        notation = None if tools is None else tools.notation
        thinks = self.task.replica.thinks and self.task.asked.params.structured is None
        inside = (assembler.prompt or "").rstrip().endswith(OPEN)
        voices = [
            Voice(
                None if notation is None else ToolCalls(notation),
                Reasoning(inside=inside) if thinks else None,
                several=tools is None or tools.several,
            )
            for _ in range(self.task.asked.params.n)
        ]
        for index, voice in enumerate(voices if self.task.asked.stream else ()):
            voice.push(assembler.delivered(index))
        return voices

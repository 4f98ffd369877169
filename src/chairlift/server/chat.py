"""The route /v1/chat/completions: a conversation is answered."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from chairlift.llm.assembler import Assembler
from chairlift.server.generate import generate
from chairlift.server.parse import ChatAsked, read_chat
from chairlift.server.render import ChatRenderer, Named
from chairlift.server.replica import Replica
from chairlift.server.scores import ChatScores
from chairlift.server.tools import parsed_arguments
from chairlift.server.voice import Voice
from chairlift.text.reasoning import OPEN, Reasoning
from chairlift.text.tools import ToolCalls
from chairlift.web.body import Receive, Scope, Send

PATH = "/v1/chat/completions"


class ChatCompletions:
    """The route."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a conversation."""
        began, replica = time.monotonic(), self._replica
        asked = await replica.read(scope, receive, lambda body: read_chat(body, replica.notation), is_work=True)
        replica.check_model(asked.model)
        job = _Job(
            replica, asked, scope["request_id"], scope["principal"].tenant, replica.timeout(scope, asked.timeout)
        )
        await generate(replica, scope, receive, send, asked, job, began)


@dataclass(slots=True)
class _Job:
    """See generate.Job."""

    replica: Replica
    asked: ChatAsked
    request_id: str
    tenant: str
    timeout: float | None

    def assemblers(self) -> list[Assembler]:
        asked, tools = self.asked, self.asked.tools
        return [self.replica.service.chat_assembler(
            parsed_arguments(asked.messages), asked.params, request_id=self.replica.engine_id(self.request_id),
            priority=asked.priority, tenant=self.tenant, timeout=self.timeout, resume=asked.resume,
            tools=None if tools is None else tools.tools, prefill="" if tools is None else tools.prefill,
            cache_salt=asked.cache_salt,
        )]  # fmt: skip

    def renderer(self, assemblers: Sequence[Assembler]) -> ChatRenderer:
        asked, top = self.asked, self.asked.params.logprobs
        scores = ChatScores(self.replica.pieces, top) if asked.logprobs and top is not None else None
        named = Named.of("chatcmpl", self.request_id, asked.model)
        return ChatRenderer(asked, named, scores, self._voices(assemblers[0]))

    def _voices(self, assembler: Assembler) -> Sequence[Voice]:
        """Return one for each choice; what a structure holds together is not looked through for reasoning.

        A stream that is resumed goes on where its voices were.
        """
        tools = self.asked.tools
        notation = None if tools is None else tools.notation
        thinks = self.replica.thinks and self.asked.params.structured is None
        inside = (assembler.prompt or "").rstrip().endswith(OPEN)
        voices = [
            Voice(
                None if notation is None else ToolCalls(notation),
                Reasoning(inside=inside) if thinks else None,
                several=tools is None or tools.several,
            )
            for _ in range(self.asked.params.n)
        ]
        for index, voice in enumerate(voices if self.asked.stream else ()):
            voice.push(assembler.delivered(index))
        return voices

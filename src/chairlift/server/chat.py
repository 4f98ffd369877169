"""The route /v1/chat/completions: a conversation is answered."""

from collections.abc import Sequence
from typing import Any

from chairlift.llm.assembler import Assembler
from chairlift.server.parse import ChatAsked, read_chat
from chairlift.server.render import ChatRenderer, Named
from chairlift.server.route import Route, Task
from chairlift.server.scores import ChatScores
from chairlift.server.tools import parsed_arguments
from chairlift.server.voice import Voice
from chairlift.text.reasoning import OPEN, Reasoning
from chairlift.text.tools import ToolCalls

PATH = "/v1/chat/completions"


class _Chat(Task[ChatAsked]):
    """An answer to a conversation."""

    __slots__ = ()

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


class ChatCompletions(Route[ChatAsked]):
    """The route."""

    task = _Chat

    def read(self, body: dict[str, Any]) -> ChatAsked:
        """See Route."""
        return read_chat(body, self._replica.notation)

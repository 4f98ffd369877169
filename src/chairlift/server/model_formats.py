"""ModelFormats: how the served model writes tool calls and reasoning, and the text of its single tokens."""

from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from chairlift.core.errors import InvalidRequest
from chairlift.llm.text_service import TextService
from chairlift.text.chat_messages import ChatMessages
from chairlift.text.forced_call_grammar import marker_ids
from chairlift.text.reasoning_formats import ReasoningFormat
from chairlift.text.template_features import offers_direct_answer
from chairlift.text.template_input import template_input
from chairlift.text.token_pieces import TokenPieces
from chairlift.text.tool_formats.base import ToolFormat
from chairlift.text.tool_formats.detect import detect_tool_format, keep_reasoning, tool_format_by_name
from chairlift.text.tool_formats.generic import GENERIC


class ModelFormats:
    """What the routes have to know of the output of a text service's model; found out when it is first asked for.

    Args:
        service: the text service.
        tool_call_parser: name of the format of tool calls; None chooses by chat template and special tokens.
    """

    def __init__(self, service: TextService, tool_call_parser: str | None) -> None:
        self._service, self._tool_call_parser = service, tool_call_parser

    def probe_template(self) -> None:
        """Find out what the chat template writes and which format of calls it has, before the first request."""
        if (chat := self._service.chat_template) is not None:
            for with_tools in (True, False):
                chat.abilities(with_tools=with_tools)
            _ = self.tool_format

    @cached_property
    def tool_format(self) -> ToolFormat:
        """Format of the model's tool calls, from the setting, or from the chat template and the special tokens.

        Where a model may choose and reasons without a start marker, no grammar enforces the format: it would take the
        reasoning for the answer. The same holds for a template that tells the model to call a tool of its own.
        """
        tokenizer, name = self._service.tokenizer, self._tool_call_parser
        special = () if tokenizer is None else tokenizer.special_tokens
        chat = self._service.chat_template
        if name is not None:
            found = tool_format_by_name(name, special)
        elif chat is None:
            found = GENERIC
        else:
            found = detect_tool_format(chat.text, special, takes_tools=chat.abilities(with_tools=True).tools)
        if chat is not None and chat.keeps_reasoning:
            found = keep_reasoning(found)
        if self.reasoning_format is not None:
            found = replace(found, follows_reasoning=True)
        if self.reasoning_format is not None and self.reasoning_format.is_always_open:
            found = replace(found, is_enforced=False, auto_notations=())
        if chat is not None and offers_direct_answer(chat.text):
            found = replace(found, auto_notations=())
        if tokenizer is None:
            return found
        return replace(found, token_ids=marker_ids(found, partial(tokenizer.encode, add_special_tokens=False)))

    def template_input(
        self, messages: ChatMessages, tools: list[dict[str, Any]] | None
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
        """Return the messages and the tools of a conversation as the model's chat template writes them.

        Raises InvalidRequest without a chat template.
        """
        if (chat := self._service.chat_template) is None:
            raise InvalidRequest("the model has no chat template; send a prompt instead of messages", param="messages")
        return template_input(messages, tools, self.tool_format, chat)

    @property
    def reasoning_format(self) -> ReasoningFormat | None:
        """How the model marks its reasoning; None where it has none."""
        chat = self._service.chat_template
        return None if chat is None else chat.reasoning_format

    @cached_property
    def has_special_reasoning_markers(self) -> bool:
        """Whether the model marks its reasoning with special tokens, which must then stay in the text."""
        reasoning, tokenizer = self.reasoning_format, self._service.tokenizer
        return reasoning is not None and tokenizer is not None and reasoning.uses_any(tokenizer.special_tokens)

    @cached_property
    def token_pieces(self) -> TokenPieces:
        """Text and bytes of single tokens. Raises InvalidRequest without a tokenizer."""
        if self._service.tokenizer is None:
            raise InvalidRequest("logprobs needs a tokenizer, which the model does not have", param="logprobs")
        return TokenPieces(self._service.tokenizer)

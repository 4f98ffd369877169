"""TextPlace, with_text_at: where the text of an answer with calls stands, as many templates drop it beside a call."""

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

from chairlift.text.chat_messages import ChatMessage, joined

PLAN = "tool_plan"
"""Member of an answer with calls in which Command R's templates read its text."""


class TextPlace(StrEnum):
    """Where the text of an answer with calls stands."""

    BESIDE = "beside the calls"
    REASONING = "in the reasoning before the calls"
    PLAN = "in the plan of the calls"
    ANSWER = "in an answer of its own before the calls"
    BEFORE = "at the end of the message before the calls"


def with_text_at(place: TextPlace, before: Sequence[ChatMessage], message: ChatMessage) -> list[ChatMessage]:
    """Return the messages before an answer with calls, and this answer with its text at `place`."""
    bare, text = replace(message, content=""), message.content
    match place:
        case TextPlace.BESIDE:
            return [*before, message]
        case TextPlace.REASONING:
            return [*before, replace(bare, reasoning=joined(message.reasoning, text))]
        case TextPlace.PLAN:
            plan = message.other.get(PLAN)
            return [
                *before,
                replace(bare, other={**message.other, PLAN: joined(plan if isinstance(plan, str) else "", text)}),
            ]
        case TextPlace.ANSWER:
            return [*before, ChatMessage(role="assistant", content=text), bare]
        case TextPlace.BEFORE:
            last = before[-1] if before else ChatMessage(role="user")
            return [*before[:-1], last.with_text(text), bare]

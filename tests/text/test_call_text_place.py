"""with_text_at: the text of an answer with calls is at the place that is asked for, and only there."""

from dataclasses import replace

import pytest

from chairlift.text.call_text_place import PLAN, TextPlace, with_text_at
from chairlift.text.chat_messages import ChatMessage, ToolCall

USER = ChatMessage(role="user", content="Hello.")
CALLING = ChatMessage(
    role="assistant", content="I look.", reasoning="Look it up.", calls=(ToolCall("c", "f", {}),), other={"x": 1}
)
BARE = replace(CALLING, content="")


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (TextPlace.BESIDE, [USER, CALLING]),
        (TextPlace.REASONING, [USER, replace(BARE, reasoning="Look it up.\n\nI look.")]),
        (TextPlace.PLAN, [USER, replace(BARE, other={"x": 1, PLAN: "I look."})]),
        (TextPlace.ANSWER, [USER, ChatMessage(role="assistant", content="I look."), BARE]),
        (TextPlace.BEFORE, [ChatMessage(role="user", content="Hello.\n\nI look."), BARE]),
    ],
)
def test_each_place(place: TextPlace, expected: list[ChatMessage]) -> None:
    assert with_text_at(place, [USER], CALLING) == expected


def test_a_plan_stays_before_the_text_and_a_first_answer_gets_a_message_before_it() -> None:
    planned = replace(CALLING, other={PLAN: "First."})
    assert with_text_at(TextPlace.PLAN, [], planned)[0].other[PLAN] == "First.\n\nI look."
    assert with_text_at(TextPlace.BEFORE, [], CALLING) == [ChatMessage(role="user", content="I look."), BARE]

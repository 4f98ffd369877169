"""Orders of calls and results: a result behind its call, one call in an answer, a result for a call without one."""

import random
from dataclasses import replace

from chairlift.text.call_result_order import with_empty_results, with_results_behind_calls, with_single_calls
from chairlift.text.chat_messages import ChatMessage, ToolCall
from support_shares import for_each

USER = ChatMessage(role="user", content="u")


def calling(ids: str) -> ChatMessage:
    calls = tuple(ToolCall(each, "f", {}) for each in ids)
    return ChatMessage(role="assistant", content="t", reasoning="r", calls=calls)


def result(call_id: str, text: str = "") -> ChatMessage:
    return ChatMessage(role="tool", content=text, call_id=call_id, name="f")


def conversation(text: str) -> list[ChatMessage]:
    """Return messages: u is the user, (ab) an answer with two calls, a the result of the call a."""
    messages: list[ChatMessage] = []
    for part in text.split():
        if part == "u":
            messages.append(USER)
        else:
            messages.append(calling(part[1:-1]) if part.startswith("(") else result(part))
    return messages


def short(messages: list[ChatMessage]) -> str:
    return " ".join(
        "u" if each.role == "user" else each.call_id or f"({''.join(call.id for call in each.calls)})"
        for each in messages
    )


@for_each(
    ("sent", "behind", "single"),
    [
        ("u (ab) a b u", "u (ab) a b u", "u (a) a (b) b u"),
        ("u (ab) b a", "u (ab) b a", "u (a) a (b) b"),
        ("u (ab) u a b", "u (ab) a b u", "u (a) a (b) b u"),
        ("u (ab) a u b u", "u (ab) a b u u", "u (a) a (b) b u u"),
        ("(a) (b) a b", "(a) a (b) b", "(a) a (b) b"),
        ("(ab) u", "(ab) u", "(a) (b) u"),
        ("(ab)", "(ab)", "(a) (b)"),
        ("(ab) b", "(ab) b", "(a) (b) b"),
        ("(a) a a (a) a", "(a) a a (a) a", "(a) a a (a) a"),
        ("(aa) a a", "(aa) a a", "(a) a a (a)"),
        ("x u (a) a", "x u (a) a", "x u (a) a"),
        ("(ab) x a b", "(ab) a b x", "(a) a (b) b x"),
    ],
)
def test_orders(sent: str, behind: str, single: str) -> None:
    messages = conversation(sent)
    assert short(with_results_behind_calls(messages)) == behind
    assert short(with_single_calls(messages)) == single


def test_the_text_and_the_reasoning_stay_before_the_first_of_the_calls() -> None:
    first, second = with_single_calls([calling("ab")])
    assert (first.content, first.reasoning, second.content, second.reasoning) == ("t", "r", "", "")


@for_each(
    ("sent", "expected"),
    [("u (ab) u", "u (ab) b u"), ("u (ab) a u", "u (ab) a u"), ("u (a)", "u (a)"), ("u (a) (b) u", "u (a) (b) b u")],
)
def test_a_call_that_the_user_stopped_has_an_empty_result(sent: str, expected: str) -> None:
    assert short(with_empty_results(conversation(sent))) == expected


def test_no_message_is_lost_or_doubled() -> None:
    for seed in range(300):
        dice = random.Random(seed)
        ids = [*"abcd"]
        sent = [
            dice.choice([USER, calling("".join(dice.sample(ids, dice.randint(1, 3)))), result(dice.choice(ids))])
            for _ in range(dice.randint(0, 9))
        ]
        sent = [replace(each, name=str(at)) for at, each in enumerate(sent)]
        moved, single = with_results_behind_calls(sent), with_single_calls(sent)
        assert sorted(each.name for each in moved) == sorted(each.name for each in sent), seed
        texts = sorted(each.name for each in sent if not each.calls)
        assert sorted(each.name for each in single if not each.calls) == texts, seed
        calls = [(each.name, call.id) for each in sent for call in each.calls]
        assert [(each.name, call.id) for each in single for call in each.calls] == calls, seed

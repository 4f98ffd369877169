"""with_results_behind_calls, with_single_calls, with_empty_results: calls and results in an order that templates write.

Clients send results late, in another order than the calls, or not at all, for a call that the user stopped.
"""

from collections.abc import Sequence
from dataclasses import replace

from chairlift.text.chat_messages import ChatMessage

RESULT, USER = "tool", "user"


def with_results_behind_calls(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return the messages with each result behind the last answer before it that has its call, in the order sent."""
    callers: dict[str, int] = {}  # id of a call -> place of the answer
    results: dict[int, list[ChatMessage]] = {}
    for at, message in enumerate(messages):
        callers |= {call.id: at for call in message.calls}
        if message.role == RESULT and message.call_id in callers:
            results.setdefault(callers[message.call_id], []).append(message)
    moved = {id(message) for run in results.values() for message in run}
    return [
        each for at, message in enumerate(messages) if id(message) not in moved
        for each in (message, *results.get(at, ()))
    ]  # fmt: skip


def with_single_calls(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return the messages with an answer for each call, followed by the results of the call."""
    result: list[ChatMessage] = []
    ordered = with_results_behind_calls(messages)
    for at, message in enumerate(ordered):
        if len(message.calls) > 1:
            run = _results_at(ordered, at + 1)
            for number, call in enumerate(message.calls):
                alone = replace(message, calls=(call,))
                result.append(alone if number == 0 else replace(alone, content="", reasoning=""))
                result += [each for each in run if each.call_id == call.id]
                run = [each for each in run if each.call_id != call.id]
            result += run
        elif not (message.role == RESULT and _is_of_several_calls(ordered, at)):
            result.append(message)
    return result


def with_empty_results(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return the messages with an empty result for the last call of an answer that the user follows."""
    result: list[ChatMessage] = []
    for message in messages:
        if message.role == USER and result and result[-1].calls:
            call = result[-1].calls[-1]
            result.append(ChatMessage(role=RESULT, call_id=call.id, name=call.name))
        result.append(message)
    return result


def _results_at(messages: Sequence[ChatMessage], start: int) -> list[ChatMessage]:
    end = start
    while end < len(messages) and messages[end].role == RESULT:
        end += 1
    return [*messages[start:end]]


def _is_of_several_calls(messages: Sequence[ChatMessage], at: int) -> bool:
    """Return whether the result at this place stands in a run of results behind an answer with several calls."""
    while at > 0 and messages[at].role == RESULT:
        at -= 1
    return len(messages[at].calls) > 1

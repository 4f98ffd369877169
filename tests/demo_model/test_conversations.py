"""Conversations: a seed makes the same ones, none has a held-out task, and tool calls name tools that are offered."""

import json
from dataclasses import replace
from itertools import islice, pairwise
from random import Random

import pytest

from demo_model import conversations as made
from demo_model.conversations import (
    SKILLS,
    Conversation,
    conversation,
    conversations,
    draw,
    examination,
    is_held_out,
    may_be_trained_on,
)  # fmt: skip
from demo_model.skills.tool_calls import calling
from demo_model.task import Task, assistant, one

FEW = 2_000


def few(seed: str, drilling: float = 0.0) -> list[Conversation]:
    return list(islice(conversations(seed, drilling), FEW))


@pytest.mark.full
def test_the_same_seed_gives_the_same_and_another_one_others() -> None:
    assert few("a") == few("a")
    assert sum(first == second for first, second in zip(few("a"), few("b"), strict=True)) < FEW / 50


@pytest.mark.full
def test_turns_are_whole_and_end_with_the_assistants() -> None:
    for each in few("turns"):
        if each.text:
            assert not each.messages
            continue
        roles = [message["role"] for message in each.messages]
        if roles[0] == "system":
            roles.pop(0)
        assert roles[0] == "user" and roles[-1] == "assistant"
        for before, after in pairwise(roles):
            assert after in {"user": ("assistant",), "tool": ("assistant",), "assistant": ("user", "tool")}[before]


@pytest.mark.full
def test_every_task_in_them_is_named_and_none_is_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nearly everything is held out, nothing of that comes in."""
    for share in (made.HELD_OUT, 2):
        monkeypatch.setattr(made, "HELD_OUT", share)
        for each in (*few("held out"), *few("drilled", 0.5)):
            assert bool(each.asked) != bool(each.text)
            assert not any(is_held_out(Task("any", tuple(json.loads(asked)), "")) for asked in each.asked)
            said = [message["content"] for message in each.messages if message["role"] == "user"]
            assert not any(is_held_out(one("any", text, "")) for text in said)


@pytest.mark.full
def test_a_share_is_held_out_whatever_it_is() -> None:
    for name, skill in SKILLS.items():
        rng = Random(name)
        share = sum(is_held_out(skill(rng)) for _ in range(FEW)) / FEW
        assert 0 < share < 3 / made.HELD_OUT, name


@pytest.mark.full
def test_a_task_within_which_something_held_out_is_said_may_not_be_read_either() -> None:
    (held_out,) = examination("tools", 1)
    (asked,) = held_out.messages
    later = Task("any", (asked, assistant("x"), {"role": "tool", "content": "y"}), "z")
    if is_held_out(later):
        later = replace(later, messages=(*later.messages, assistant("a"), {"role": "tool", "content": "b"}))
    assert not is_held_out(later) and not may_be_trained_on(later) and not may_be_trained_on(held_out)
    assert not any(may_be_trained_on(task) for skill in SKILLS for task in examination(skill, 20))


def test_what_is_held_out_hangs_on_what_is_said_and_not_on_the_tools() -> None:
    rng = Random(5)
    for _ in range(FEW):
        task = calling(rng)
        assert is_held_out(task) == is_held_out(replace(task, tools=())) == is_held_out(replace(task, answer="x"))


@pytest.mark.share(5)
@pytest.mark.parametrize("skill", SKILLS)
def test_an_examination_is_of_different_tasks_that_are_held_out(skill: str) -> None:
    tasks = examination(skill, 50)
    assert len({task.asked for task in tasks}) == 50
    assert all(is_held_out(task) and task.skill in (skill, "memory") for task in tasks)
    assert [task.asked for task in examination(skill, 10)] == [task.asked for task in tasks[:10]]
    assert all(task.is_right(task.answer) and not task.is_right(f"{task.answer}?!") for task in tasks)
    assert all(not task.is_right("") for task in tasks)


@pytest.mark.full
def test_calls_are_made_only_of_tools_that_are_there() -> None:
    for each in few("tools"):
        names = {tool["function"]["name"] for tool in each.tools}
        for message in each.messages:
            text = message["content"]
            if message["role"] == "assistant" and text.startswith("<tool_call>"):
                call = json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call>"))
                assert call["name"] in names
                assert set(call["arguments"]) == parameters(each, call["name"])


def parameters(each: Conversation, name: str) -> set[str]:
    (found,) = (tool["function"] for tool in each.tools if tool["function"]["name"] == name)
    return set(found["parameters"]["properties"])


@pytest.mark.full
def test_drilling_is_a_share_of_them() -> None:
    rng = Random(1)
    drilled = [conversation(rng, drilling=1.0) for _ in range(50)]
    assert all(each.messages[-1]["content"] in each.messages[0]["content"] for each in drilled)
    assert few("a", 0.5) != few("a")


def test_a_draw_is_of_the_kind_that_was_asked_for() -> None:
    rng = Random(2)
    tasks = [draw(rng, SKILLS["echo"], held_out=True) for _ in range(3)]
    assert all(map(is_held_out, tasks))
    assert not any(is_held_out(draw(rng, SKILLS["echo"], held_out=False)) for _ in range(100))


@pytest.mark.full
def test_no_conversation_claims_what_it_was_not_told() -> None:
    """Whoever says that something was not told stands at the beginning."""
    for each in few("memory"):
        said = [message["content"] for message in each.messages if message["role"] == "assistant"]
        assert not any(text.startswith("You did not tell me") for text in said[1:])


def test_an_answer_is_a_message_of_the_assistants() -> None:
    assert assistant("x") == {"role": "assistant", "content": "x"}

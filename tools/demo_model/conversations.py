"""Conversations: chats made of random tasks; held-out tasks are kept for the evaluation.

A hash of the prompt decides whether a task is held out, for every seed, so that no run can train on it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from random import Random
from typing import Any

from demo_model.skills import json_extraction, knowledge, memory, stories, sums_and_dates, tool_calls, word_tasks
from demo_model.task import Message, Skill, Task, assistant

BETWEEN: tuple[Skill, ...] = (word_tasks.echo, knowledge.fact, sums_and_dates.total, knowledge.unknown)
"""Skills of the messages between a fact and the question about it."""

PLAIN = 0.05
"""Share of conversations that are plain text without a chat."""

HELD_OUT = 40
"""One of this number of tasks is held out."""

SYSTEMS = (
    "You are a helpful assistant.", "You are the demo model of Chairlift.", "Answer briefly.", "You are a small model.",
    "Be kind and short.",
)  # fmt: skip
CHATTING: dict[Skill, int] = {
    knowledge.greeting: 5, knowledge.about: 12, word_tasks.echo: 12, word_tasks.copy: 14, word_tasks.spell: 7,
    word_tasks.reverse: 7, word_tasks.count: 7,
    word_tasks.sort: 14, sums_and_dates.total: 12, knowledge.fact: 12, sums_and_dates.date: 7, knowledge.listing: 4,
    stories.story: 4,
    json_extraction.filling: 16, word_tasks.drill: 2, knowledge.unknown: 6, memory.remembering: 9, memory.not_told: 1,
}  # fmt: skip
"""Skill -> its weight in conversations without tools."""

SKILLS: dict[str, Skill] = {
    "greeting": knowledge.greeting, "about": knowledge.about, "echo": word_tasks.echo, "copy": word_tasks.copy,
    "spell": word_tasks.spell, "reverse": word_tasks.reverse, "count": word_tasks.count, "sort": word_tasks.sort,
    "sums": sums_and_dates.total,
    "facts": knowledge.fact, "dates": sums_and_dates.date, "lists": knowledge.listing, "stories": stories.story,
    "json": json_extraction.filling,
    "tools": tool_calls.calling, "tool results": tool_calls.telling, "unknown": knowledge.unknown,
    "memory": lambda rng: memory.remembering(rng, lambda rng: between(rng, held_out=None)),
}  # fmt: skip
"""Name -> skill, each once; the evaluation covers these."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One training conversation; the loss includes every assistant message.

    Attributes:
        messages: from the first one to the assistant's last.
        tools: the tools that the system message offers.
        asked: the prompts of its tasks.
        text: a plain text in place of messages; the loss includes all of it.
    """

    messages: tuple[Message, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    asked: tuple[str, ...] = ()
    text: str = ""


def is_held_out(task: Task) -> bool:
    """Tell whether a task is reserved for the evaluation."""
    return int.from_bytes(sha256(task.asked.encode()).digest()[:4], "big") % HELD_OUT == 0


def may_be_trained_on(task: Task) -> bool:
    """Tell whether the training may use a task: neither it nor one of its user messages alone is held out."""
    said = (message for message in task.messages if message["role"] == "user")
    return not is_held_out(task) and not any(is_held_out(Task("", (message,), "")) for message in said)


def draw(rng: Random, skill: Skill, *, held_out: bool | None) -> Task:
    """Draw a task that is held out (True), one that the training may use (False), or any (None)."""
    while True:
        task = skill(rng)
        if held_out is None or (is_held_out(task) if held_out else may_be_trained_on(task)):
            return task


def between(rng: Random, *, held_out: bool | None = False) -> list[Message]:
    """Draw what lies between two things to remember: mostly nothing."""
    messages: list[Message] = []
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        task = draw(rng, rng.choice(BETWEEN), held_out=held_out)
        messages += [*task.messages, assistant(task.answer)]
    return messages


def _remembering(rng: Random) -> Task:
    return memory.remembering(rng, between)


def conversation(rng: Random, drilling: float = 0.0) -> Conversation:
    """Draw a conversation of none but tasks that may be trained on; that share of them is nothing but copying."""
    chosen = rng.random()
    if chosen < drilling:
        task = draw(rng, word_tasks.drill, held_out=False)
        return Conversation((*task.messages, assistant(task.answer)), (), (task.asked,))
    if chosen > 1 - PLAIN:
        return Conversation(text=rng.choice((stories.plain, knowledge.plain))(rng))
    messages: list[Message] = []
    if rng.random() < 0.2:
        messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
    box = tool_calls.toolbox(rng) if rng.random() < 0.3 else ()
    asked: list[str] = []
    first = None
    if box and rng.random() < 0.85:
        first = draw(
            rng,
            rng.choice((tool_calls.calling, tool_calls.calling, tool_calls.calling, tool_calls.telling)),
            held_out=False,
        )
        box = first.tools
    for turn in range(rng.choice((1, 1, 2, 3, 4, 6))):
        if turn == 0 and first is not None:
            task = first
        elif box and rng.random() < 0.5:
            task = draw(rng, _calling_one_of(box), held_out=False)
        else:
            task = draw(rng, _skill(rng, is_first=not asked, has_tools=bool(box)), held_out=False)
        if task.tools and task.tools != box:
            continue
        messages += [*task.messages, assistant(task.answer)]
        asked.append(task.asked)
    if not asked:
        return conversation(rng)
    return Conversation(tuple(messages), box, tuple(asked))


def _skill(rng: Random, *, is_first: bool, has_tools: bool) -> Skill:
    chosen = rng.choices(tuple(CHATTING), tuple(CHATTING.values()))[0]
    if chosen is memory.not_told and not is_first:
        return knowledge.about  # it may have been told
    if chosen is knowledge.unknown and has_tools:
        return knowledge.about  # a tool may know
    return _remembering if chosen is memory.remembering else chosen


def _calling_one_of(box: tuple[dict[str, Any], ...]) -> Callable[[Random], Task]:
    return lambda rng: tool_calls.calling(rng, box)


def conversations(seed: str, drilling: float = 0.0) -> Iterator[Conversation]:
    """Yield conversations without end, the same ones for the same seed; see conversation."""
    rng = Random(f"conversations {seed}")
    while True:
        yield conversation(rng, drilling)


def examination(skill: str, count: int, seed: int = 0) -> list[Task]:
    """Draw so many different held-out tasks of a skill."""
    rng = Random(f"examination {skill} {seed}")
    found: dict[str, Task] = {}
    while len(found) < count:
        task = draw(rng, SKILLS[skill], held_out=True)
        found.setdefault(task.asked, task)
    return list(found.values())

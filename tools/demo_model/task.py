"""Task: one thing that a user asks and the assistant does, and how to tell whether an answer is right."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

Check = Callable[[str], bool]
Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Task:
    """Messages that end with the user's, and what is to come.

    Attributes:
        skill: what it is an example of.
        messages: what the assistant sees; the last one is the user's or a tool's.
        answer: what the assistant is taught to say.
        tools: JSON schemas of what it may call.
        check: whether another answer is right too; None where only this one is.
    """

    skill: str
    messages: tuple[Message, ...]
    answer: str
    tools: tuple[dict[str, Any], ...] = ()
    check: Check | None = field(default=None, compare=False)

    def is_right(self, said: str) -> bool:
        """Tell whether what was said will do."""
        said = said.strip()
        return said == self.answer if self.check is None else self.check(said)

    @property
    def asked(self) -> str:
        """All that was said, as one string: what tells two tasks apart, whatever tools are offered."""
        return json.dumps(self.messages, ensure_ascii=False, sort_keys=True)


Skill = Callable[[Random], Task]


def user(text: str) -> Message:
    """Make a user's message."""
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    """Make an assistant's message."""
    return {"role": "assistant", "content": text}


def one(skill: str, text: str, answer: str, check: Check | None = None) -> Task:
    """Make a task of one message."""
    return Task(skill, (user(text),), answer, check=check)


def cased(rng: Random, text: str) -> str:
    """Write a sentence as people do: mostly with a capital letter, sometimes without."""
    return text[0].lower() + text[1:] if rng.random() < 0.15 else text


def asked_politely(rng: Random, text: str, mark: str) -> str:
    """Put a word before or behind a question or an order, and the mark that ends it, or none."""
    before = rng.choice(("", "", "", "", "Please ", "Could you tell me: ", "Hey, ", "Now: ", "Question: ", "OK, "))
    behind = rng.choice(("", "", "", "", "", ", please", " Thanks", " Thank you."))
    end = rng.choice((mark, mark, mark, ""))
    if before == "Please ":
        text = text[0].lower() + text[1:] if not text[:2].isupper() and not text.startswith("I ") else text
    made = f"{before}{text}{', please' if behind == ', please' else ''}{end}"
    return cased(rng, made + (behind if behind != ", please" else ""))


def numbers_in(text: str) -> list[int]:
    """Return the whole numbers of a text."""
    return [int(found) for found in re.findall(r"-?\d+", text)]

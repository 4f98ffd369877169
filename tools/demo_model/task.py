"""Task: a user's request, the expected answer, and the check for other correct answers."""

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
    """A prompt and its expected answer.

    Attributes:
        skill: name of the skill.
        messages: the prompt; the last message is the user's or a tool's.
        answer: the answer that the training teaches.
        tools: JSON Schemas of the tools that the assistant may call.
        check: tells whether another answer is correct, too; None if only `answer` is.
    """

    skill: str
    messages: tuple[Message, ...]
    answer: str
    tools: tuple[dict[str, Any], ...] = ()
    check: Check | None = field(default=None, compare=False)

    def is_right(self, said: str) -> bool:
        """Tell whether an answer is correct."""
        said = said.strip()
        return said == self.answer if self.check is None else self.check(said)

    @property
    def asked(self) -> str:
        """All messages as one string, which identifies the task; the offered tools do not count."""
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
    """Return a sentence that begins with a capital letter, or rarely with a small one."""
    return text[0].lower() + text[1:] if rng.random() < 0.15 else text


def asked_politely(rng: Random, text: str, mark: str) -> str:
    """Add polite words before or after a question or a request, and its final mark or none."""
    before = rng.choice(("", "", "", "", "Please ", "Could you tell me: ", "Hey, ", "Now: ", "Question: ", "OK, "))
    behind = rng.choice(("", "", "", "", "", ", please", " Thanks", " Thank you."))
    end = rng.choice((mark, mark, mark, ""))
    if before == "Please ":
        text = text[0].lower() + text[1:] if not text[:2].isupper() and not text.startswith("I ") else text
    made = f"{before}{text}{', please' if behind == ', please' else ''}{end}"
    return cased(rng, made + (behind if behind != ", please" else ""))


def numbers_in(text: str) -> list[int]:
    """Return the integers in a text."""
    return [int(found) for found in re.findall(r"-?\d+", text)]

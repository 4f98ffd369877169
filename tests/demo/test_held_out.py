"""Held out: no prompt of the examination, as a string, is in anything that the training has read."""

import json
from functools import cache
from itertools import islice

import pytest

from chairlift import demo
from demo_model.conversations import SKILLS, Conversation, conversations, examination
from demo_model.evaluate import COUNT
from demo_model.task import Task
from demo_model.tokenizer_training import SAMPLE
from demo_model.tokenizing_and_packing import Writer, step_rows
from demo_model.train import LONG, LONG_EVERY, SHORT, TOKENS, drilling_at
from support_shares import FULL

TRAINING = json.loads((demo.FOLDER / "training.json").read_text(encoding="utf-8"))
SHARE = 599
"""Every so many steps are looked at in `make test`, short and long ones; all of them in `make test-all`."""


class Recorder(Writer):
    """Keeps what it writes: every message, every text, and what each task was asked with."""

    def __init__(self) -> None:
        super().__init__(demo.FOLDER)
        self.seen: set[str] = set()

    def ids(self, conversation: Conversation) -> tuple[list[int], list[bool]]:
        self.keep(conversation)
        return super().ids(conversation)

    def keep(self, conversation: Conversation) -> None:
        self.seen.update(conversation.asked, (str(message["content"]) for message in conversation.messages))
        self.seen.add(conversation.text)


@cache
def read_in_training() -> frozenset[str]:
    """Return every string that the run, or the making of its tokenizer, has looked at, also what then found no room."""
    recorder, seed, steps = Recorder(), TRAINING["seed"], TRAINING["steps"]
    for step in range(0, steps, 1 if FULL else SHARE):
        length = LONG if step % LONG_EVERY == LONG_EVERY - 1 else SHORT
        step_rows(recorder, seed, step, TOKENS, length, drilling_at(step, steps))
    for each in islice(conversations(f"tokenizer {seed}"), SAMPLE if FULL else SAMPLE // SHARE):
        recorder.keep(each)
    return frozenset(recorder.seen)


def among(tasks: list[Task], read: frozenset[str]) -> list[str]:
    """Return what of the tasks was read: a task as a whole, or, where it is one message, that."""
    single = [str(task.messages[0]["content"]) for task in tasks if len(task.messages) == 1]
    return [text for text in (*(task.asked for task in tasks), *single) if text in read]


@pytest.mark.full
def test_none_of_their_strings_is_in_the_training_data() -> None:
    read = read_in_training()
    assert len(read) > 1_000 and {"Hello! How can I help you?", "I don't know that."} <= read
    for skill in SKILLS:
        tasks = examination(skill, COUNT)
        assert len(tasks) == COUNT >= 50
        assert among(tasks, read) == [], skill


@pytest.mark.full
def test_what_is_read_would_be_found() -> None:
    """Both ways: a task as it was asked, and the text of its one message."""
    tasks = examination("echo", 3)
    text = str(tasks[1].messages[0]["content"])
    assert among(tasks, read_in_training() | {tasks[0].asked}) == [tasks[0].asked]
    assert among(tasks, read_in_training() | {text}) == [text]


def test_long_steps_are_among_those_that_are_looked_at() -> None:
    looked_at = range(0, TRAINING["steps"], SHARE)
    assert len({step % LONG_EVERY == LONG_EVERY - 1 for step in looked_at}) == 2

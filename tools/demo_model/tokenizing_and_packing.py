"""Sequence packing: puts several tokenized conversations into a training row; attention stays inside each one."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from chairlift.text.chat_template import ChatTemplate, RenderOptions
from chairlift.text.tokenizer import HFTokenizer
from demo_model.conversations import Conversation, conversations
from demo_model.skills.knowledge import UNKNOWN
from demo_model.skills.memory import NOT_TOLD
from demo_model.task import Task, assistant
from demo_model.tokenizer_training import END, OVER, START

Int64 = NDArray[np.int64]
SHORT = 512
"""Row length up to which conversations are packed as they are; for longer rows several are joined into one."""

MOST = 24
"""Upper bound (exclusive) of the number of conversations that are joined into one."""

MISSES = 40
"""Number of conversations without room after which the rows count as full."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one training step.

    Attributes:
        input_ids: int64 [B, T]; the end of a row is padding.
        parts: int64 [B, T], the number of a token's conversation in its row, from 1; 0 for padding.
        positions: int64 [B, T], the token's position in its conversation.
        is_learnt: bool [B, T], whether the loss includes the token, which an assistant message has.
    """

    input_ids: Int64
    parts: Int64
    positions: Int64
    is_learnt: NDArray[np.bool_]


class Writer:
    """Converts conversations to token ids by the chat template.

    Attributes:
        end: id of the token that ends a message.
        padding: id of the padding token.
    """

    def __init__(self, folder: Path) -> None:
        self._tokenizer = HFTokenizer.load(folder)
        self._template = ChatTemplate.load(folder, self._tokenizer)
        start, self.end, self.padding = (self._tokenizer.special_tokens[text] for text in (START, END, OVER))
        self._said_by = (start, *self._tokenizer.encode("assistant\n"))

    def ids(self, conversation: Conversation) -> tuple[list[int], list[bool]]:
        """Return the ids of a conversation, and which of them the loss includes: assistant messages with their ends.

        For a plain text these are all tokens except the first, which has no token before it.
        """
        if conversation.text:
            plain = [*self._tokenizer.encode(conversation.text), self.end]
            return plain, [False] + [True] * (len(plain) - 1)
        rendered = self._template.render(
            conversation.messages, tools=conversation.tools or None, options=RenderOptions(add_generation_prompt=False)
        )
        ids = self._tokenizer.encode_chat(rendered)
        learnt, place, width = [False] * len(ids), 0, len(self._said_by)
        while place < len(ids):
            if tuple(ids[place : place + width]) == self._said_by:
                place += width
                while place < len(ids) and ids[place] != self.end:
                    learnt[place] = True
                    place += 1
                learnt[place] = True
            place += 1
        return ids, learnt

    def task(self, task: Task) -> tuple[list[int], list[bool]]:
        """Return the ids of a task and its answer, and which of them the loss includes: the answer."""
        ids, learnt = self.ids(Conversation((*task.messages, assistant(task.answer)), task.tools))
        last = max(place for place, is_end in enumerate(ids) if is_end == self.end)
        first = last
        while learnt[first - 1]:
            first -= 1
        return ids, [first <= place <= last for place in range(len(ids))]


def packed(written: Iterator[tuple[list[int], list[bool]]], rows: int, length: int) -> Rows:
    """Fill rows from a stream: each conversation goes into the first row with room, until MISSES had no room."""
    ids, parts, positions = (np.zeros((rows, length), np.int64) for _ in range(3))
    learnt = np.zeros((rows, length), np.bool_)
    used, count, misses = [0] * rows, [0] * rows, 0
    for tokens, said in written:
        row = next((row for row in range(rows) if used[row] + len(tokens) <= length), None)
        if row is None:
            misses += 1
            if misses == MISSES:
                break
            continue
        count[row] += 1
        span = slice(used[row], used[row] + len(tokens))
        ids[row, span], learnt[row, span], parts[row, span] = tokens, said, count[row]
        positions[row, span] = np.arange(len(tokens))
        used[row] += len(tokens)
    return Rows(ids, parts, positions, learnt)


def step_rows(writer: Writer, seed: int, step: int, tokens: int, length: int, drilling: float = 0.0) -> Rows:
    """Return the rows of one step. They depend only on the arguments, so that a run can continue at any step."""
    drawn, rng = conversations(f"{seed} {step}", drilling), Random(f"rows {seed} {step}")
    stream = drawn if length <= SHORT else iter(lambda: joined(list(islice(drawn, rng.randrange(1, MOST)))), None)
    return packed(map(writer.ids, stream), tokens // length, length)


def joined(several: list[Conversation]) -> Conversation:
    """Join several conversations into one; only the first one may have tools."""
    talks = sorted((each for each in several if each.messages), key=lambda each: not each.tools)
    if not talks:
        return several[0]
    first, *others = talks
    more = [
        message
        for other in others
        if _may_follow(other, first)
        for message in other.messages
        if message["role"] != "system"
    ]  # fmt: skip
    return Conversation((*first.messages, *more), first.tools)


def _may_follow(other: Conversation, first: Conversation) -> bool:
    """Tell whether `other` stays correct after `first`: its tools and its unknown answers must not conflict with it."""
    said = [str(message["content"]) for message in other.messages]
    return not (
        other.tools or any(text.startswith(NOT_TOLD) for text in said) or (first.tools and UNKNOWN in said)
    )  # fmt: skip

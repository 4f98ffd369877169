"""TextPlaceholder: stands for a text of a client: its number, its length and its special characters, not its words.

A session's file has the placeholder as a string, `⟦text 17: 5321; "\\n" 80, "`" 24⟧`: the text with number 17 has 5321
characters, 80 of them line breaks and 24 backticks. `expand` makes a text of our own words with the same numbers, which
begins and ends with words that no other text has.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

WORDS = ("the", "model", "reads", "a", "note", "and", "writes", "each", "answer", "while", "other", "tests", "wait")
"""Words of the texts that stand for those of clients."""

TAG = re.compile(r"</?[A-Za-z][\w-]*>")
FILLER_TAG = "<part>"
SPECIAL = "\n\t`{}[]\"'<>|$#*\\"
"""Characters that are counted and appear again; characters outside ASCII are counted together, as é."""

PLACEHOLDER = re.compile(r"⟦text (\d+): (\d+)((?:; \".*\" \d+)?)⟧", re.DOTALL)
_ENTRY = re.compile(r"(\"(?:\\.|[^\"\\])*\") (\d+)")


@dataclass(frozen=True, slots=True)
class TextPlaceholder:
    """What is stored of a text.

    Attributes:
        number: the text's number; equal texts of a session have the same.
        num_characters: its length.
        counts: special character, or FILLER_TAG for any tag of XML -> how often it appears.
    """

    number: int
    num_characters: int
    counts: Mapping[str, int]

    @classmethod
    def of(cls, text: str, number: int) -> Self:
        """Return the placeholder of a text."""
        tags = TAG.findall(text)
        rest = TAG.sub("", text)
        found = Counter(each if each in SPECIAL else "é" for each in rest if each in SPECIAL or not each.isascii())
        return cls(number, len(text), {**({FILLER_TAG: len(tags)} if tags else {}), **dict(sorted(found.items()))})

    @classmethod
    def parse(cls, written: str) -> Self | None:
        """Return the placeholder that a string is; None for another string."""
        if (match := PLACEHOLDER.fullmatch(written)) is None:
            return None
        counts = {json.loads(each): int(count) for each, count in _ENTRY.findall(match[3])}
        return cls(int(match[1]), int(match[2]), counts)

    def written(self) -> str:
        """Return the placeholder as a session's file has it."""
        counts = ", ".join(f"{json.dumps(each, ensure_ascii=False)} {count}" for each, count in self.counts.items())
        return f"⟦text {self.number}: {self.num_characters}{'; ' + counts if counts else ''}⟧"

    def markers(self) -> tuple[str, str]:
        """Return the words with which the text begins and ends."""
        return f"begin{self.number}text", f"end{self.number}text"

    def expand(self) -> str:
        """Return the text: special characters at even distances between words, and the length of the original.

        It is longer than the original where that is too short for the markers and the special characters.
        """
        begin, end = self.markers()
        special = _spread(self.counts)
        room = self.num_characters - len(begin) - len(end) - sum(map(len, special)) - 2
        pieces = _words(max(room, 0))
        step = max(len(pieces) / (len(special) + 1), 1e-9)
        for index in reversed(range(len(special))):
            pieces.insert(min(round((index + 1) * step), len(pieces)), special[index])
        return f"{begin} {''.join(pieces)} {end}"


def _spread(counts: Mapping[str, int]) -> list[str]:
    """Return the special characters so that each kind appears at even distances."""
    placed = [((index + 0.5) / count, each) for each, count in counts.items() for index in range(count)]
    return [each for _, each in sorted(placed)]


def _words(num_characters: int) -> list[str]:
    """Return pieces of words and spaces that have so many characters together."""
    pieces: list[str] = []
    left, index = num_characters, 0
    while left > 0:
        word = (WORDS[index % len(WORDS)] + " ")[:left]
        pieces.append(word)
        left -= len(word)
        index += 1
    return pieces

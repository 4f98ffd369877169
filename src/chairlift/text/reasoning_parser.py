"""ReasoningParser: separates a model's reasoning from its answer while the text streams."""

from dataclasses import dataclass

from chairlift.text.reasoning_formats import ReasoningFormat

SPACE = " \t\r\n"
MAX_BLANKS = 256
"""White space characters to hold back in case the reasoning ends with them."""


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """New text: `reasoning` before the closing tag, `content` of the answer."""

    reasoning: str = ""
    content: str = ""


class ReasoningParser:
    """Splits an output at a format's start, which must be first, and at its first end; other markers are text.

    Owns the text that may yet become a marker, and white space around it. Other spellings are text. Tags around the
    answer behind the reasoning are left out.
    """

    def __init__(self, format: ReasoningFormat, *, is_open: bool = False) -> None:
        """Start to parse an output; `is_open` is whether its prompt ends within the reasoning."""
        self._starts, self._ends = format.starts, format.ends
        self._tags = format.answer_tags
        self._answer_end = ""  # the tag that ends the answer, once its start was read
        self._without_start = "inside" if format.is_always_open else "after"
        self._state = "inside" if is_open else "before"
        self._held = ""
        self._is_fresh = True  # nothing of this part was emitted, so leading white space is dropped

    def push(self, delta: str) -> ReasoningDelta:
        """Add new text; return the text that is certain now."""
        if self._state == "after" and not self._is_fresh and not self._answer_end:
            return ReasoningDelta(content=delta)
        self._held += delta
        reasoning = content = ""
        if self._state == "before":
            start = self._held.lstrip(SPACE)
            marker = next((each for each in self._starts if start.startswith(each)), None)
            if marker is not None:
                self._held, self._state = start[len(marker) :], "inside"
            elif any(each.startswith(start) for each in self._starts) and len(self._held) < MAX_BLANKS:
                return ReasoningDelta()
            else:
                self._state = self._without_start
                self._is_fresh = self._state == "inside"
                self._tags = self._tags if self._is_fresh else None  # they stand behind reasoning only
        if self._state == "inside":
            reasoning = self._inside()
        if self._state == "after":
            content = self._after()
        return ReasoningDelta(reasoning, content)

    def flush(self) -> ReasoningDelta:
        """Return the held-back text at the end of the answer."""
        held, self._held = self._held, ""
        if self._state == "inside":
            return ReasoningDelta(reasoning=held.rstrip(SPACE))
        return ReasoningDelta(content=held)

    def _inside(self) -> str:
        if self._is_fresh:
            self._held = self._held.lstrip(SPACE)
        found = [(place, end) for end in self._ends if (place := self._held.find(end)) >= 0]
        if found:
            place, end = min(found)
            reasoning, self._held = self._held[:place].rstrip(SPACE), self._held[place + len(end) :]
            self._state, self._is_fresh = "after", True
            return reasoning
        keep = max(_partial_length(end, self._held) for end in self._ends)
        certain = self._held[: len(self._held) - keep]
        if len(certain) - len(reasoning := certain.rstrip(SPACE)) < MAX_BLANKS:
            certain = reasoning
        self._held = self._held[len(certain) :]
        self._is_fresh = self._is_fresh and not certain
        return certain

    def _after(self) -> str:
        content = self._held.lstrip(SPACE) if self._is_fresh else self._held
        if self._tags is not None:
            start, end = self._tags
            if start.startswith(content):  # it may become the tag
                self._held = content
                return ""
            self._tags = None
            if content.startswith(start):
                self._held, self._answer_end = content[len(start) :], end
                return self._after()
        if self._answer_end:
            content, self._held = self._before_answer_end(content)
        else:
            self._held = ""
        self._is_fresh = self._is_fresh and not content
        return content

    def _before_answer_end(self, text: str) -> tuple[str, str]:
        """Return the text that is certain to stand before the end of the answer, and the rest; the end is dropped."""
        before, end, rest = text.partition(self._answer_end)
        if end:
            self._answer_end = ""
            text = before.rstrip(SPACE) + rest
            return (text.lstrip(SPACE) if self._is_fresh else text), ""
        certain = text[: len(text) - _partial_length(self._answer_end, text)]
        if len(certain) - len(stripped := certain.rstrip(SPACE)) < MAX_BLANKS:
            certain = stripped
        return certain, text[len(certain) :]


def _partial_length(marker: str, text: str) -> int:
    """Return the number of characters at the end of the text that may begin the marker."""
    return next((size for size in range(min(len(marker) - 1, len(text)), 0, -1) if marker.startswith(text[-size:])), 0)

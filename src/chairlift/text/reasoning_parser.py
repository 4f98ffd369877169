"""ReasoningParser: separates a model's reasoning from its answer while the text streams."""

from dataclasses import dataclass

OPEN, CLOSE = "<think>", "</think>"
SPACE = " \t\r\n"
MAX_BLANKS = 256
"""White space characters to hold back in case the reasoning ends with them."""


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """New text: `reasoning` before the closing tag, `content` of the answer."""

    reasoning: str = ""
    content: str = ""


def has_reasoning(template: str) -> bool:
    """Return whether a chat template belongs to a model with reasoning tags."""
    return CLOSE in template


class ReasoningParser:
    """Splits an output at an opening tag at its start and at a closing tag; other tags are text.

    Owns the text that may yet become a tag, and white space around it. Tags with another spelling are text.
    """

    def __init__(self, *, inside: bool) -> None:
        """Start to parse; `inside` is whether the prompt ended with the opening tag."""
        self._state = "inside" if inside else "before"
        self._held = ""
        self._is_fresh = True  # nothing of this part was emitted, so leading white space is dropped

    def push(self, delta: str) -> ReasoningDelta:
        """Add new text; return the text that is certain now."""
        if self._state == "after" and not self._is_fresh:
            return ReasoningDelta(content=delta)
        self._held += delta
        reasoning = content = ""
        if self._state == "before":
            start = self._held.lstrip(SPACE)
            if start.startswith(OPEN):
                self._held, self._state = start[len(OPEN) :], "inside"
            elif OPEN.startswith(start) and len(self._held) < MAX_BLANKS:
                return ReasoningDelta()
            else:
                self._state, self._is_fresh = "after", False
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
        place = self._held.find(CLOSE)
        if place >= 0:
            reasoning, self._held = self._held[:place].rstrip(SPACE), self._held[place + len(CLOSE) :]
            self._state, self._is_fresh = "after", True
            return reasoning
        keep = _partial_tag_length(CLOSE, self._held)
        certain = self._held[: len(self._held) - keep]
        if len(certain) - len(reasoning := certain.rstrip(SPACE)) < MAX_BLANKS:
            certain = reasoning
        self._held = self._held[len(certain) :]
        self._is_fresh = self._is_fresh and not certain
        return certain

    def _after(self) -> str:
        content = self._held.lstrip(SPACE) if self._is_fresh else self._held
        self._held = ""
        self._is_fresh = self._is_fresh and not content
        return content


def _partial_tag_length(tag: str, text: str) -> int:
    """Return the number of characters at the end of the text that may begin the tag."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if tag.startswith(text[-size:])), 0)

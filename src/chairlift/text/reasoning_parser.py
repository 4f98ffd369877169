"""Reasoning: what a model thinks before its answer, told from the answer while both come."""

from dataclasses import dataclass

OPEN, CLOSE = "<think>", "</think>"
SPACE = " \t\r\n"
MAX_BLANKS = 256
"""White space that is held back, in case that the reasoning ends with it."""


@dataclass(frozen=True, slots=True)
class Told:
    """New text: `thought` belongs to the reasoning, `said` to the answer."""

    thought: str = ""
    said: str = ""


def has_reasoning(template: str) -> bool:
    """Tell whether a chat template belongs to a model that thinks in marks."""
    return CLOSE in template


class Reasoning:
    """Splits one answer: an opening mark at its very beginning, up to the closing one. Elsewhere marks are text.

    Owns what may yet become a mark, and white space around it. Marks that were spelled differently are text.
    """

    def __init__(self, *, inside: bool) -> None:
        """Begin; `inside` says that the prompt ended with the opening mark."""
        self._state = "inside" if inside else "before"
        self._held = ""
        self._is_fresh = True  # nothing of this part was said, so white space before it does not count

    def push(self, delta: str) -> Told:
        """Take new text; return what is certain now."""
        if self._state == "after" and not self._is_fresh:
            return Told(said=delta)
        self._held += delta
        thought = said = ""
        if self._state == "before":
            start = self._held.lstrip(SPACE)
            if start.startswith(OPEN):
                self._held, self._state = start[len(OPEN) :], "inside"
            elif OPEN.startswith(start) and len(self._held) < MAX_BLANKS:
                return Told()
            else:
                self._state, self._is_fresh = "after", False
        if self._state == "inside":
            thought = self._inside()
        if self._state == "after":
            said = self._after()
        return Told(thought, said)

    def flush(self) -> Told:
        """Return what was held back: the answer is over."""
        held, self._held = self._held, ""
        if self._state == "inside":
            return Told(thought=held.rstrip(SPACE))
        return Told(said=held)

    def _inside(self) -> str:
        if self._is_fresh:
            self._held = self._held.lstrip(SPACE)
        place = self._held.find(CLOSE)
        if place >= 0:
            thought, self._held = self._held[:place].rstrip(SPACE), self._held[place + len(CLOSE) :]
            self._state, self._is_fresh = "after", True
            return thought
        keep = _beginning_of(CLOSE, self._held)
        certain = self._held[: len(self._held) - keep]
        if len(certain) - len(thought := certain.rstrip(SPACE)) < MAX_BLANKS:
            certain = thought
        self._held = self._held[len(certain) :]
        self._is_fresh = self._is_fresh and not certain
        return certain

    def _after(self) -> str:
        said = self._held.lstrip(SPACE) if self._is_fresh else self._held
        self._held = ""
        self._is_fresh = self._is_fresh and not said
        return said


def _beginning_of(mark: str, text: str) -> int:
    """Return how many characters at the end of the text may be the beginning of the mark."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if mark.startswith(text[-size:])), 0)

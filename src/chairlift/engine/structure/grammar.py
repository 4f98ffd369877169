"""Grammar: what one choice's output has to be, and how far it is: llguidance's matcher, confined to its request."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chairlift.core.errors import InvalidRequest, StructureFailed
from chairlift.engine.plan import Int32

if TYPE_CHECKING:
    from llguidance import LLMatcher

BITS = 32
MAX_SAID = 300
"""Characters of what the library says that go into a sentence of ours."""


class Grammar:
    """Follows one output, token by token. What goes wrong is kept, and raised by the next advance().

    Attributes:
        width: int32 words of a mask.
        is_over: whether nothing can follow.
    """

    __slots__ = ("_failure", "_matcher", "is_over", "width")

    def __init__(self, matcher: "LLMatcher", width: int) -> None:
        self._matcher = matcher
        self._failure: StructureFailed | None = None
        self.width = width
        self.is_over: bool = matcher.is_stopped()

    def copy(self) -> "Grammar":
        """Return one that goes on from here by itself."""
        return Grammar(self._matcher.deep_copy(), self.width)

    def fill(self, row: Int32) -> None:
        """Write which tokens may come next, int32 [width], one bit a token, lowest first.

        Never raises: where that cannot be found out within the limits of a step, every token is allowed.
        """
        if self._failure is None:
            try:
                self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
                wrong = self._matcher.get_error() if self._matcher.is_error() else ""
            except Exception as error:
                wrong = f"{type(error).__name__}: {error}"
            if wrong:
                self._failure = StructureFailed(f"the structure cannot be followed: {said(wrong)}")
        if self._failure is not None:
            row[:] = -1

    def check(self) -> None:
        """Raise StructureFailed for what went wrong."""
        if self._failure is not None:
            raise self._failure

    def advance(self, token: int) -> None:
        """Take the next token. Raises StructureFailed for one that is not allowed, and for what went wrong before."""
        if self._failure is None and not self._matcher.consume_token(token):
            wrong = said(self._matcher.get_error())
            self._failure = StructureFailed(f"the structure cannot be followed at token {token}: {wrong}")
        self.check()
        self.is_over = self._matcher.is_stopped()

    def resumed(self, tokens: Sequence[int]) -> "Grammar":
        """Take tokens that were delivered before; returns itself.

        Raises InvalidRequest where one does not follow, StructureFailed where finding that out costs too much.
        """
        count = self._matcher.try_consume_tokens(list(tokens))
        if self._matcher.is_error():
            raise StructureFailed(f"the structure cannot be followed: {said(self._matcher.get_error())}")
        if count < len(tokens):
            raise InvalidRequest(f"resume: token {tokens[count]} does not follow the structure", param="resume")
        self.is_over = self._matcher.is_stopped()
        return self


def said(error: str) -> str:
    """Return what the library says of an error, on one line and not longer than a sentence may be."""
    line = " ".join(error.replace("<non-verbose/>", "").split())
    if line == "NoExtensionBias":
        return "no output can follow it"
    return line if len(line) <= MAX_SAID else line[:MAX_SAID] + " ..."

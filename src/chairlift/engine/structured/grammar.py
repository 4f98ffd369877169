"""Grammar: what one choice's output has to be, and how far it is: llguidance's matcher, confined to its request."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from chairlift.core.errors import InvalidRequest, StructuredOutputFailed
from chairlift.engine.step_plan import Int32

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

BITS = 32
MAX_SAID = 300
"""Characters of what the library says that go into a sentence of ours."""


class MaskBatch:
    """Masks that are made together.

    Attributes:
        bits: int32 [N, width], one row a grammar, good when `done`.
        done: ends when they are made; nobody touches the grammars any more. Set by whoever has them made.
        is_at_work: whether what makes them has no need of Python's lock any more.
    """

    __slots__ = ("bits", "done", "is_at_work")

    def __init__(self, bits: Int32) -> None:
        self.bits = bits
        self.done: Future[None]
        self.is_at_work = False


class Grammar:
    """Follows one output, token by token. What goes wrong is kept, and raised by the next advance().

    Attributes:
        width: int32 words of a mask.
        is_over: whether nothing can follow.
        coming: the mask of what may come next where somebody makes it, good when that is done; a new token ends it.
    """

    __slots__ = ("_failure", "_is_taken", "_matcher", "is_terminated", "pending_mask", "width")

    def __init__(self, matcher: "LLMatcher", width: int) -> None:
        self._matcher = matcher
        self._failure: StructuredOutputFailed | None = None
        self._is_taken = False  # the last token, which ends it
        self.width = width
        self.pending_mask: tuple[MaskBatch, int] | None = None
        self.is_terminated: bool = matcher.is_stopped()

    def copy(self) -> "Grammar":
        """Return one that goes on from here by itself."""
        return Grammar(self._matcher.deep_copy(), self.width)

    def fill(self, row: Int32) -> None:
        """Write which tokens may come next, int32 [width], one bit a token, lowest first.

        Never raises: where that cannot be found out within the limits of a step, every token is allowed.
        """
        wrong = ""
        if self._failure is None:
            try:
                self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
            except BaseException as error:  # a panic is no Exception
                wrong = f"{type(error).__name__}: {error}"
        self._filled(row, wrong)

    def _filled(self, row: Int32, wrong: str = "") -> None:
        """Keep what went wrong with a mask, and allow every token then."""
        if self._failure is None and (
            wrong := wrong or (self._matcher.get_error() if self._matcher.is_error() else "")
        ):
            self._failure = StructuredOutputFailed(f"the structure cannot be followed: {short_message(wrong)}")
        if self._failure is not None:
            row[:] = -1

    def check(self) -> None:
        """Raise StructuredOutputFailed for what went wrong."""
        if self._failure is not None:
            raise self._failure

    def try_advance(self, token: int) -> bool:
        """Take the next token; False where nothing may follow it, or advance() raises: that is to be called then."""
        if self._failure is not None or not self._matcher.consume_token(token):
            return False
        self.pending_mask = None
        self._is_taken = self.is_terminated = self._matcher.is_stopped()
        return not self.is_terminated

    def advance(self, token: int) -> None:
        """Take the next token.

        Raises StructuredOutputFailed for one that is not allowed, and for what went wrong before.
        """
        self.pending_mask = None
        if self._is_taken:
            return
        if self._failure is None and not self._matcher.consume_token(token):
            wrong = short_message(self._matcher.get_error())
            self._failure = StructuredOutputFailed(f"the structure cannot be followed at token {token}: {wrong}")
        self.check()
        self.is_terminated = self._matcher.is_stopped()

    def resumed(self, tokens: Sequence[int]) -> "Grammar":
        """Take tokens that were delivered before; returns itself.

        Raises InvalidRequest where one does not follow, StructuredOutputFailed where finding that out costs too much.
        """
        count = self._matcher.try_consume_tokens(list(tokens))
        if self._matcher.is_error():
            raise StructuredOutputFailed(
                f"the structure cannot be followed: {short_message(self._matcher.get_error())}"
            )
        if count < len(tokens):
            raise InvalidRequest(f"resume: token {tokens[count]} does not follow the structure", param="resume")
        self.is_terminated = self._matcher.is_stopped()
        return self


class MaskFiller:
    """Makes masks together, without Python's lock; one a thread."""

    def __init__(self) -> None:
        self._library: LLExecutor | None = None

    def fill(self, grammars: Sequence[Grammar], batch: MaskBatch) -> None:
        """Write what may come next in each grammar into its row of a batch, as Grammar.fill does; never raises."""
        bits = batch.bits
        try:
            if self._library is None:
                from llguidance import LLExecutor

                self._library = LLExecutor(1)  # others have work for the other processors
            alive = [(grammar._matcher, row) for row, grammar in enumerate(grammars) if grammar._failure is None]
            batch.is_at_work = True
            self._library.unsafe_compute_mask_ptr(alive, bits.ctypes.data, bits.strides[0], len(bits))
            for grammar, row in zip(grammars, bits, strict=True):
                grammar._filled(row)
        except BaseException:  # a panic is no Exception
            for grammar, row in zip(grammars, bits, strict=True):
                self.fill_one(grammar, row)

    @staticmethod
    def fill_one(grammar: Grammar, row: Int32) -> None:
        """Write what may come next in a grammar, int32 [width]; never raises."""
        try:
            grammar.fill(row)
        except BaseException:  # not even room for words: then the next token is found to be wrong, or is right
            row.fill(-1)


def short_message(error: str) -> str:
    """Return what the library says of an error, on one line and not longer than a sentence may be."""
    line = " ".join(error.replace("<non-verbose/>", "").split())
    if line == "NoExtensionBias":
        return "no output can follow it"
    return line if len(line) <= MAX_SAID else line[:MAX_SAID] + " ..."

"""GrammarMatcher: follows the structured output of one choice by llguidance; its errors fail only that request."""

import re
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING

from chairlift.core.errors import InvalidRequest, StructuredOutputFailed, StructuredOutputTooComplex
from chairlift.engine.step_plan import Int32

if TYPE_CHECKING:
    from llguidance import LLMatcher

EXCEEDED_LIMIT = re.compile(
    r"Current row has \d+ items; max is \d+|too many items \(limit \d+\)?|too many expressions constructed|"
    r"too many states: \d+|fuel exhausted", re.IGNORECASE,
)  # fmt: skip
"""The library's messages about LIMITS."""

BITS = 32
"""Tokens in one int32 word of a mask."""
MAX_WAIT_SECONDS = 0.002
"""How long the engine thread waits for a mask that it needs before it can guess tokens; later it does not guess any."""
MAX_ERROR_CHARS = 300
"""Characters of a library's error that an error message repeats."""


class MaskBatch:
    """Masks that are computed together.

    Attributes:
        bits: int32 [N, width], one row a grammar, valid when `done` is done.
        done: done when all masks are computed and the grammars are unused again. MaskWorker sets it.
        runs_without_gil: whether the thread that computes the masks does not need the GIL any more.
    """

    __slots__ = ("_is_late", "bits", "done", "runs_without_gil")

    def __init__(self, bits: Int32) -> None:
        self.bits = bits
        self.done: Future[None]
        self.runs_without_gil = False
        self._is_late = False

    def wait_briefly(self) -> bool:
        """Return whether all masks are computed; the first call waits for up to MAX_WAIT_SECONDS."""
        if not self._is_late and not self.done.done():
            with suppress(TimeoutError):
                self.done.exception(MAX_WAIT_SECONDS)
            self._is_late = True
        return self.done.done()


class GrammarMatcher:
    """Follows one output, token by token. Keeps the first error and raises it in the next advance().

    Attributes:
        width: int32 words of a mask.
        is_terminated: whether no token can follow.
        is_after_drafts: whether it has consumed tokens that may be wrong; then a mask that fails allows no token, so
            that the sample is not reached.
        pending_mask: batch and row of the mask of the next token, while or after it is computed; None after each token.
    """

    __slots__ = (
        "_failure",
        "_has_final_token",
        "_matcher",
        "is_after_drafts",
        "is_terminated",
        "pending_mask",
        "width",
    )

    def __init__(self, matcher: "LLMatcher", width: int) -> None:
        self._matcher = matcher
        self._failure: StructuredOutputFailed | None = None
        self._has_final_token = False  # try_advance() has consumed the token that terminates it
        self.width = width
        self.is_after_drafts = False
        self.pending_mask: tuple[MaskBatch, int] | None = None
        self.is_terminated: bool = matcher.is_stopped()

    def copy(self) -> "GrammarMatcher":
        """Return an independent copy in the same state."""
        return GrammarMatcher(self._matcher.deep_copy(), self.width)

    def after_each(self, drafts: Sequence[int]) -> "tuple[GrammarMatcher, ...]":
        """Return copies that have consumed 1, 2, ... of the drafts; ends before one that is not allowed or is final.

        Returns none while a thread computes the mask of the next token and does not end soon.
        """
        copies: list[GrammarMatcher] = []
        matcher = self if self._failure is None and drafts and self._is_unused() else None
        for draft in drafts:
            matcher = None if matcher is None else matcher.copy()
            if matcher is None or not matcher.try_advance(draft):
                break
            matcher.is_after_drafts = True
            copies.append(matcher)
        return tuple(copies)

    def forced_tokens(self) -> tuple[int, ...]:
        """Return the next tokens of the text that the grammar forces, as the tokenizer encodes it. Never raises.

        Returns none while a thread computes the mask of the next token and does not end soon.
        """
        if self._failure is not None or self.is_terminated or not self._is_unused():
            return ()
        try:
            # A copy, so that whatever the library computes for this changes no mask and fails no output.
            return tuple(self._matcher.deep_copy().compute_ff_tokens())
        except BaseException:  # a panic of the library is not an Exception
            return ()

    def _is_unused(self) -> bool:
        """Return whether no thread computes its mask, after a short wait: the library refuses any other use then."""
        return self.pending_mask is None or self.pending_mask[0].wait_briefly()

    def fill(self, row: Int32) -> None:
        """Write which tokens may come next, int32 [width], one bit a token, lowest first.

        Never raises: where the mask exceeds the limits of a step, it keeps the error and allows every token, or none
        if it is after drafts.
        """
        error_text = ""
        if self._failure is None:
            try:
                self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
            except BaseException as error:  # a panic of the library is not an Exception
                error_text = f"{type(error).__name__}: {error}"
        self._finish_mask(row, error_text)

    def _finish_mask(self, row: Int32, error_text: str = "") -> None:
        """Keep the error of a mask, if it has one, and allow every token then."""
        if self._failure is None and (
            error_text := error_text or (self._matcher.get_error() if self._matcher.is_error() else "")
        ):
            self._failure = _error_of(error_text)
        if self._failure is not None:
            # The row is sampled all the same: the error is raised where its token is appended.
            row[:] = self.failed_mask

    @property
    def failed_mask(self) -> int:
        """Each word of a mask that cannot be computed."""
        return 0 if self.is_after_drafts else -1

    def check(self) -> None:
        """Raise the first error. Raises StructuredOutputFailed."""
        if self._failure is not None:
            raise self._failure

    def try_advance(self, token: int) -> bool:
        """Consume the next token if it is allowed and not the final one.

        Returns False otherwise; the caller calls advance() then, which raises for a token that is not allowed.
        """
        if self._failure is not None or not self._matcher.consume_token(token):
            return False
        self.pending_mask = None
        self._has_final_token = self.is_terminated = self._matcher.is_stopped()
        return not self.is_terminated

    def advance(self, token: int) -> None:
        """Consume the next token.

        Raises StructuredOutputFailed for a token that is not allowed, and for an earlier error.
        """
        self.pending_mask = None
        # try_advance() has consumed it and left the end of the choice to the slow path.
        if self._has_final_token:
            return
        if self._failure is None and not self._matcher.consume_token(token):
            self._failure = _error_of(self._matcher.get_error(), f" at token {token}")
        self.check()
        self.is_terminated = self._matcher.is_stopped()

    def resume(self, tokens: Sequence[int]) -> "GrammarMatcher":
        """Consume the tokens of an earlier response that the request resumes, and return self.

        Raises InvalidRequest for a token that is not allowed, StructuredOutputFailed where that exceeds the limits.
        """
        count = self._matcher.try_consume_tokens(list(tokens))
        if self._matcher.is_error():
            raise _error_of(self._matcher.get_error())
        if count < len(tokens):
            raise InvalidRequest(f"resume: token {tokens[count]} is not allowed by the grammar", param="resume")
        self.is_terminated = self._matcher.is_stopped()
        return self


INTERNALS = re.compile(
    r"\n +\d+ \| |: Some\(|:\s*\((?:And|Or|Not|Regex|SearchRegex|Literal|Concat)\b|; following special tokens"
)  # fmt: skip
"""Start of what the library shows behind an error: numbered lines of the grammar, or values of its own."""

REGEX_ERROR = re.compile(r"(?:invalid regex [^\n]*: )?regex parse error:\n.*?\nerror: ([^\n]*)", re.DOTALL)
"""An error of a regular expression, which the library repeats."""

HEAD_CHARS = 200
"""Characters at the start of a long message that are kept; the rest of MAX_ERROR_CHARS is its end."""


def _error_of(text: str, at: str = "") -> StructuredOutputFailed:
    """Return the error for a message of the library: an exceeded limit is the request's fault, anything else is not."""
    if limit := exceeded_limit(text):
        return StructuredOutputTooComplex(limit)
    return StructuredOutputFailed(f"the grammar cannot be followed{at}: {short_message(text)}")


def exceeded_limit(text: str) -> str:
    """Return which limit a message of the library is about, "" for another message."""
    limit = EXCEEDED_LIMIT.search(text)
    return limit[0].rstrip(" ;,.(") if limit else ""


def short_message(error: str) -> str:
    """Return an error of the library on one line, without the grammar's text, cut to MAX_ERROR_CHARS."""
    text = INTERNALS.split(REGEX_ERROR.sub(r"invalid regex: \1", error.replace("<non-verbose/>", "")))[0]
    line = " ".join(text.split())
    if line == "NoExtensionBias":
        return "no output can follow it"
    return (
        line if len(line) <= MAX_ERROR_CHARS else f"{line[:HEAD_CHARS]} ... {line[HEAD_CHARS + 1 - MAX_ERROR_CHARS :]}"
    )

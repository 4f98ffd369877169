"""MaskFiller: computes the token masks of many grammars at once."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chairlift.engine.step_plan import Int32

if TYPE_CHECKING:
    from llguidance import LLExecutor
from chairlift.engine.structured.grammar_matcher import GrammarMatcher, MaskBatch


class MaskFiller:
    """Computes several masks in one call without the GIL. Each thread needs its own."""

    def __init__(self) -> None:
        self._library: LLExecutor | None = None

    def fill(self, grammars: Sequence[GrammarMatcher], batch: MaskBatch) -> None:
        """Write the mask of each grammar into its row of a batch, as GrammarMatcher.fill does. Never raises."""
        bits = batch.bits
        try:
            if self._library is None:
                from llguidance import LLExecutor

                self._library = LLExecutor(1)  # the runner needs the other CPUs
            alive = [(grammar._matcher, row) for row, grammar in enumerate(grammars) if grammar._failure is None]
            batch.runs_without_gil = True
            self._library.unsafe_compute_mask_ptr(alive, bits.ctypes.data, bits.strides[0], len(bits))
            for grammar, row in zip(grammars, bits, strict=True):
                grammar._finish_mask(row)
        except BaseException:  # a panic of the library is not an Exception
            for grammar, row in zip(grammars, bits, strict=True):
                self.fill_one(grammar, row)

    @staticmethod
    def fill_one(grammar: GrammarMatcher, row: Int32) -> None:
        """Write the mask of one grammar, int32 [width]. Never raises."""
        try:
            grammar.fill(row)
        except BaseException:  # no memory even for the message: advance() still rejects a token that is not allowed
            row.fill(grammar.failed_mask)

"""MaskFiller: masks made together equal those made alone, also beside a failed grammar or after a panic."""

import numpy as np
import pytest

from chairlift.core.errors import StructuredOutputFailed
from chairlift.engine.structured.grammar_matcher import MaskBatch
from chairlift.engine.structured.mask_filler import MaskFiller
from support_grammars import grammar_of


def test_masks_made_together_are_those_made_alone_and_every_word_is_written() -> None:
    structures = [{"regex": "a"}, {"regex": "[b-y]+"}, {"json_schema": {"type": "object"}}, {"choice": ("x", "yz")}]
    together, alone = [grammar_of(**each) for each in structures], [grammar_of(**each) for each in structures]
    batch = MaskBatch(np.full((4, together[0].width), 0x5A5A5A5A, np.int32))
    MaskFiller().fill(together, batch)
    for grammar, row in zip(alone, batch.bits, strict=True):
        expected = np.zeros(grammar.width, np.int32)
        grammar.fill(expected)
        assert np.array_equal(row, expected)


@pytest.mark.parametrize("is_known", [True, False])
def test_one_that_has_failed_allows_all_and_leaves_its_neighbours_alone(is_known: bool) -> None:
    grammars = [grammar_of(regex="a"), grammar_of(regex="b"), grammar_of(regex="c")]
    if is_known:
        assert not grammars[1].try_advance(ord("x"))
    else:
        assert not grammars[1]._matcher.consume_token(ord("x"))
    batch = MaskBatch(np.zeros((3, grammars[0].width), np.int32))
    MaskFiller().fill(grammars, batch)
    bits = [np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist() for row in batch.bits]
    assert bits[0] == [ord("a")] and bits[2] == [ord("c")] and (batch.bits[1] == -1).all()
    with pytest.raises(StructuredOutputFailed, match="cannot be followed"):
        grammars[1].check()
    grammars[0].check()


def test_a_library_that_panics_is_asked_for_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    class Panic(BaseException):
        pass

    class Panicking:
        def unsafe_compute_mask_ptr(self, *arguments: object) -> None:
            raise Panic("in the middle of a mask")

    filler = MaskFiller()
    filler._library = Panicking()  # type: ignore[assignment]  # only the call that panics
    grammars = [grammar_of(regex="a"), grammar_of(regex="b")]
    batch = MaskBatch(np.zeros((2, grammars[0].width), np.int32))
    filler.fill(grammars, batch)
    bits = [np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist() for row in batch.bits]
    assert bits == [[ord("a")], [ord("b")]]

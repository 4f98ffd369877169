"""compaction_item, summary_of: a summary in an item, and items that are not ours."""

from typing import Any

from chairlift.protocol.responses.compaction_item import (
    COMPACTION_TYPES,
    compaction_item,
    summary_of,
    without_compacted,
)
from support_shares import for_each


@for_each("summary", ["short", "zwei Zeilen\nund ✂ \U0001f600", "x" * 100_000])
def test_a_summary_is_read_as_it_was_written(summary: str) -> None:
    item = compaction_item("cmp_1", summary)
    assert item.keys() == {"id", "type", "encrypted_content"} and item["encrypted_content"].isascii()
    for kind in COMPACTION_TYPES:
        assert summary_of({**item, "type": kind}) == summary
    assert summary_of({**item, "type": "reasoning"}) == ""  # its content belongs to another API


def test_what_a_summary_stands_for_is_left_out() -> None:
    user, answer = {"role": "user", "content": "a"}, {"type": "message", "role": "assistant", "content": "b"}
    call, ours = {"type": "function_call", "call_id": "c"}, compaction_item("cmp_1", "S")
    other = {"type": "compaction", "encrypted_content": "x"}
    assert without_compacted([user, answer, call, ours, answer]) == [user, ours, answer]
    assert without_compacted([user, ours, answer, ours, call]) == [user, ours, call]
    assert without_compacted([user, answer, other, call]) == [user, answer, other, call]
    assert without_compacted([]) == []


@for_each("content", [
    None, 7, "", "gAAAAABo", "chairlift1", "chairlift1.", "chairlift1.*", "chairlift1.YQ", "chairlift1./w==",
    "chairlift2.YQ==", "chairlift1.é", ["chairlift1.YQ=="],
])  # fmt: skip
def test_other_and_damaged_items_have_no_summary(content: Any) -> None:
    assert summary_of({"type": "compaction", "encrypted_content": content}) == ""

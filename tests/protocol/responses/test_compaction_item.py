"""compaction_item, summary_of: a summary in an item, and items that are not ours."""

from typing import Any

from chairlift.protocol.responses.compaction_item import (
    COMPACTION_TYPES,
    compaction_item,
    kept_items,
    num_compacted,
    open_calls,
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
    call, ours = {"type": "web_search_call", "id": "c"}, compaction_item("cmp_1", "S")
    other = {"type": "compaction", "encrypted_content": "x"}
    assert without_compacted([user, answer, call, ours, answer]) == [user, ours, answer]
    assert without_compacted([user, ours, answer, ours, call]) == [user, ours, call]
    assert without_compacted([user, answer, other, call]) == [user, answer, other, call]
    assert without_compacted([]) == []


@for_each(("sent", "indices"), [
    ("", []), ("c1", [0]), ("c1 o1", []), ("c1 c2 o1", [1]), ("o1 c1", [1]), ("c1 o1 c1", [2]), ("c1 c2 c3 o2", [0, 2]),
])  # fmt: skip
def test_a_call_without_its_result_stays(sent: str, indices: list[int]) -> None:
    for kind in ("function_call", "custom_tool_call", "local_shell_call"):
        items = [
            {"type": kind if word[0] == "c" else f"{kind}_output", "call_id": word[1]} for word in sent.split()
        ]  # fmt: skip
        assert open_calls(items) == indices
        assert kept_items(items) == [items[index] for index in indices]


@for_each("item", [
    {"type": "function_call"}, {"type": "web_search_call", "id": "x"}, {"type": "tool_search_call", "call_id": None},
    {"type": "function_call", "call_id": ["c"]}, {"type": ["function_call"], "call_id": "c"}, {"call_id": "c"},
])  # fmt: skip
def test_an_item_without_the_id_of_a_call_is_none(item: dict[str, Any]) -> None:
    assert open_calls([item]) == []


def test_tools_for_the_rest_of_the_conversation_stay() -> None:
    ours, tools = compaction_item("cmp_1", "S"), [{"type": "function", "name": "f"}]
    search = {"type": "tool_search_output", "call_id": "c", "tools": tools}
    added = {"type": "additional_tools", "role": "developer", "tools": tools}
    assert without_compacted([search, {"type": "tool_search_call"}, ours, search]) == [added, ours, search]
    assert without_compacted([added, ours]) == [*kept_items([added]), ours] == [added, ours]


@for_each(("items", "num"), [
    ([], 0), ([7, None, "x"], 0), ([{"type": "compaction", "encrypted_content": "x"}], 0),
    ([7, compaction_item("a", "S")], 1), ([compaction_item("a", "S"), 7, compaction_item("b", "T"), 7], 2),
])  # fmt: skip
def test_the_last_summary_counts(items: list[Any], num: int) -> None:
    assert num_compacted(items) == num


@for_each("content", [
    None, 7, "", "gAAAAABo", "chairlift1", "chairlift1.", "chairlift1.*", "chairlift1.YQ", "chairlift1./w==",
    "chairlift2.YQ==", "chairlift1.é", ["chairlift1.YQ=="],
])  # fmt: skip
def test_other_and_damaged_items_have_no_summary(content: Any) -> None:
    assert summary_of({"type": "compaction", "encrypted_content": content}) == ""

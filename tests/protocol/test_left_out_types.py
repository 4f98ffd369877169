"""LeftOutTypes: names of types for the header of ignored parameters, within bounds."""

from chairlift.protocol.left_out_types import MAX_NAMED_TYPES, MAX_TYPE_CHARS, LeftOutTypes


def test_each_type_is_named_once_in_order() -> None:
    types = LeftOutTypes()
    for kind in ("web_search", "mcp", "web_search"):
        types.add("tools", kind)
    assert types.names == ("tools.web_search", "tools.mcp")


def test_names_are_bounded() -> None:
    types = LeftOutTypes()
    for index in range(MAX_NAMED_TYPES + 1):
        types.add("tools", f"{index:02}" + "x" * MAX_TYPE_CHARS)
    assert len(types.names) == MAX_NAMED_TYPES
    assert {len(each) for each in types.names} == {len("tools.") + MAX_TYPE_CHARS}

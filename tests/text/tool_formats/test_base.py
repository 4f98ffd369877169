"""ToolFormat, CallNotation: the texts of a notation, and which formats may answer with JSON instead of calls."""

from chairlift.text.tool_formats.base import ArgumentTags, CallNotation
from chairlift.text.tool_formats.detect import TOOL_FORMATS


def test_the_texts_of_a_notation_are_all_that_may_have_markers() -> None:
    tags = ArgumentTags(before_key="<k>", after_key="<v>", end="</v>", closing=("</c>",))
    notation = CallNotation(
        begin="<b>", before_name="<n>", other_before_names=("<o>",), after_name="</n>", after_arguments="</a>",
        end="</b>", argument_tags=tags,
    )  # fmt: skip
    assert sorted(notation.texts) == sorted(["<k>", "<v>", "</v>", "<b>", "<n>", "<o>", "</n>", "</a>", "", "</b>"])
    assert "<s>" in CallNotation(before_name="", after_name="", separator="<s>").texts


def test_calls_or_json_are_an_answer_where_a_marker_tells_them_apart() -> None:
    without = {each.name for each in TOOL_FORMATS.values() if not each.may_answer_json}
    assert without == {"llama3", "pythonic", "gemma", "gemma4", "tool-code", "deepseek-v3.2", "generic"}


def test_all_notations_of_a_format_have_the_same_tags() -> None:
    for tool_format in TOOL_FORMATS.values():
        assert len({notation.argument_tags for notation in tool_format.auto_notations}) <= 1

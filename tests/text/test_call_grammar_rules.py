"""tool_call_grammar: white space between the parts of arguments has an end."""

from chairlift.text.tool_formats.json_calls import HERMES
from support_forced_calls import call, compiled, takes


def test_white_space_between_the_parts_of_arguments_has_an_end() -> None:
    """A model that writes nothing else would do so until its last token."""
    for count, fits in ((40, True), (41, False)):
        for arguments in ("{" + " " * count + "}", '{"k"' + "\n" * count + ': ""}'):
            assert takes(compiled(HERMES), call(HERMES, "g", arguments)) is fits

"""ToolFormat, CallNotation: what a format of tool calls is, and the text around its calls."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from chairlift.core.structured_output import ReasoningPrefix
from chairlift.text.tool_formats.tool_call_parser import ToolCallParser

ToolSchemas = Mapping[str, Mapping[str, Any]]
"""Tool name -> JSON Schema of its arguments."""

SPACE = " \t\r\n"
SPACES, NUMBER, NINE = "\ue000", "\ue001", "\ue003"
"""In the texts of a CallNotation: white space, which may be missing, a number, and an id of nine characters."""
NAMES = "\ue002"
"""In a regular expression of a ToolFormat: any name of a tool."""
MAX_NAME_CHARS = 256
"""Most characters that a parser reads as the name of a function before it treats them as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentTags:
    """The tags of single arguments.

    Attributes:
        before_key: before the name of an argument.
        after_key: between the name and the value.
        end: after the value.
        closing: ends of the call, which a value that is a string does not have either.
    """

    before_key: str
    after_key: str
    end: str
    closing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeywordArguments:
    """The notation of arguments that have their names before them, as Python has them. Values are JSON.

    Attributes:
        after_key: between a name and the value.
        separator: between two arguments.
        quote: before and after an argument that is a string; "" for JSON.
    """

    after_key: str
    separator: str
    quote: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallNotation:
    """The text around the name and the arguments of calls, for formats whose calls are not JSON objects.

    Attributes:
        begin: before the first call.
        before_name: before a name.
        other_before_names: what may stand in place of it.
        after_name: between a name and its arguments.
        after_arguments: after the arguments.
        separator: between two calls; None where an answer has one call.
        end: after the last call.
        reasoning: what may stand before the calls, in formats that mark reasoning themselves.
        argument_tags: the tags of the arguments, in place of JSON; all notations of a format have the same.
        keyword_arguments: the notation of the arguments where they are no JSON object.
        is_bare: whether the first call is the beginning of the answer, without a marker before it.
    """

    begin: str = ""
    before_name: str
    other_before_names: tuple[str, ...] = ()
    after_name: str
    after_arguments: str = ""
    separator: str | None = None
    end: str = ""
    reasoning: ReasoningPrefix | None = None
    argument_tags: ArgumentTags | None = None
    keyword_arguments: KeywordArguments | None = None
    is_bare: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """Every text of a call, which may have markers."""
        tags, keywords = self.argument_tags, self.keyword_arguments
        return (
            *(() if tags is None else (tags.before_key, tags.after_key, tags.end)),
            *(() if keywords is None else (keywords.after_key, keywords.separator, keywords.quote)),
            self.begin, self.before_name, *self.other_before_names, self.after_name, self.after_arguments,
            self.separator or "", self.end,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """A format of tool calls.

    Attributes:
        name: name of the format, for settings.
        make_parser: makes the parser of one answer, from the schemas of the tools that the request offers.
        prefill: beginning of an answer that calls a tool, up to the brace of the call; a forced call's prompt ends
            with it, unless the model reasons first.
        notation: the notation of forced calls, and of earlier ones where the chat template writes none; None for JSON
            objects after the prefill.
        auto_notations: the notations of calls that the model may choose to make, where a grammar can enforce them:
            their first markers stand only before a call.
        call_starts: regular expressions of other texts that begin a call, or reasoning, for the parser; a grammar
            excludes them.
        first_call_starts: those that begin a call only at the beginning of the answer, after white space.
        other_markers: special tokens that an answer may have outside of its calls.
        follows_reasoning: whether the model may reason before a forced call, so that the answer has the prefill.
        token_ids: special token of the prefill or the notation -> its id.
        separator: what stands between two forced calls.
        name_key: key of the function's name in a forced call.
        arguments_key: key of the arguments in a forced call.
        has_special_markers: whether calls are written with special tokens, which must stay in the text.
        make_text_parser: makes the parser of an answer that may not call, in formats that mark reasoning and text
            themselves; None in the others.
        make_answer_parser: makes the parser of an answer that is calls or what the client's grammar allows, in the same
            formats: the text of such an answer may contain markers.
        is_generic: whether the model knows no format, so that a prompt explains one.
        is_enforced: whether a grammar enforces the format also when the model may choose to call.
        num_id_chars: length of a call's id that the chat template demands; 0 for any.
        has_named_ids: whether the chat template writes the id of a call in place of its name: functions.f:0.
    """

    name: str
    make_parser: Callable[[ToolSchemas], ToolCallParser]
    prefill: str = ""
    notation: CallNotation | None = None
    auto_notations: tuple[CallNotation, ...] = ()
    call_starts: tuple[str, ...] = ()
    first_call_starts: tuple[str, ...] = ()
    other_markers: tuple[str, ...] = ()
    follows_reasoning: bool = False
    token_ids: Mapping[str, int] = field(default_factory=dict)
    separator: str = "; "
    name_key: str = "name"
    arguments_key: str = "arguments"
    has_special_markers: bool = False
    make_text_parser: Callable[[], ToolCallParser] | None = None
    make_answer_parser: Callable[[ToolSchemas], ToolCallParser] | None = None
    is_generic: bool = False
    is_enforced: bool = False
    num_id_chars: int = 0
    has_named_ids: bool = False

    @property
    def may_answer_json(self) -> bool:
        """Whether a grammar can allow calls or JSON that the client constrains, and the parser tells them apart."""
        return bool(self.auto_notations) and not any(notation.is_bare for notation in self.auto_notations)

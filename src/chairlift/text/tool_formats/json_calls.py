"""JsonCalls: formats whose calls are JSON objects with a name and arguments, after a marker or without one.

hermes      <tool_call>{"name": "f", "arguments": {...}}</tool_call>, any number of them, text around them
llama3      <|python_tag|>{"name": "f", "parameters": {...}}; {...}, also without the tag at the beginning
mistral     [TOOL_CALLS][{...}, ...], or [TOOL_CALLS]f[ARGS]{...}, or [TOOL_CALLS]f[CALL_ID]id[ARGS]{...}
phi4        <|tool_call|>[{...}]<|/tool_call|>, or (phi4-functools) functools[{...}]
granite     <|tool_call|>[{...}], or <tool_call>[{...}]
command-a   <|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {...}}]<|END_ACTION|>,
            or (command-r) Action: ```json [{...}]```
json-tags   <tool_calls>[{...}]</tool_calls> (Jamba, Hunyuan), <TOOLCALL>[{...}]</TOOLCALL> (Nemotron),
            <function_call>{...} (Granite 20B), <|action_start|><|plugin|>{...}<|action_end|> (InternLM 2)
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from chairlift.text.tool_formats.base import (
    MAX_NAME_CHARS,
    SPACE,
    CallNotation,
    ToolCallParser,
    ToolFormat,
    ToolSchemas,
)
from chairlift.text.tool_formats.json_values import read_call_object, read_json_value
from chairlift.text.tool_formats.readers import read_closing, read_past_space, read_until, scan_answer
from chairlift.text.tool_formats.scanner import NotACall, Scan, Scanner, ScanningParser

FENCE = "```"


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """How calls in JSON are marked. An object or a list of objects follows each start marker.

    Attributes:
        markers: start markers.
        closing: markers after the calls; they may be missing. A fence counts only after a fence at the start.
        bare: start markers that count only at the beginning of the answer: a fence, and the brackets of the calls
            themselves. Such calls must be of the request's tools.
        has_named_calls: whether name[ARGS]{...} may follow the marker, too.
        hidden: markers that are left out of the text.
        reasoning: start of reasoning -> its end.
    """

    markers: tuple[str, ...] = ()
    closing: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    has_named_calls: bool = False
    hidden: tuple[str, ...] = ()
    reasoning: Mapping[str, str] = field(default_factory=dict)

    def make_parser(self, schemas: ToolSchemas) -> ToolCallParser:
        """Make the parser of one answer."""
        return ScanningParser(partial(_scan, style=self, schemas=schemas))


def _scan(scanner: Scanner, style: JsonCalls, schemas: ToolSchemas) -> Scan[None]:
    section = partial(_read_section, style=style, schemas=schemas)
    yield from scan_answer(
        scanner, style.markers, section, bare=style.bare, hidden=style.hidden, reasoning=style.reasoning
    )


def _read_section(scanner: Scanner, marker: str, style: JsonCalls, schemas: ToolSchemas) -> Scan[None]:
    char = marker if marker in ("{", "[") else (yield from read_past_space(scanner))
    if char in "{[":
        ends = [end for end in (*style.closing, *style.markers) if end[0] not in "[{"]
        yield from read_objects(scanner, char, ends, names=schemas if marker in style.bare else None)
    elif style.has_named_calls:
        scanner.unread(char)
        yield from _read_named_call(scanner)
    else:
        raise NotACall
    yield from read_closing(scanner, [end for end in style.closing if end != FENCE or FENCE in marker])


def read_objects(
    scanner: Scanner, first: str, ends: Sequence[str] = (), *, names: ToolSchemas | None = None
) -> Scan[None]:
    """Read an object or a list of objects, of which `first` was read, and objects that follow after a separator.

    For `ends` and `names` see read_call_object.
    """
    is_list = first == "["
    char = (yield from read_past_space(scanner)) if is_list else first
    if char != "{":
        raise NotACall
    while char == "{":
        yield from read_call_object(scanner, ends, names=names)
        char = yield from _read_separator(scanner, "]" if is_list else "")


def _read_separator(scanner: Scanner, end: str) -> Scan[str]:
    """Read white space, commas and semicolons, then a brace or `end`; return it, or "" with everything put back."""
    text: list[str] = []
    while True:
        char = yield from scanner.read()
        text.append(char)
        if char == "{":
            scanner.drop_held()
            scanner.hold(char)
            return char
        if char == end:
            scanner.drop_held()
            return char
        if char not in SPACE and char not in ",;":
            scanner.unread("".join(text))
            return ""


_NAMED = re.compile(r"\s*([^\s\[\]{}]+)\s*(?:\[CALL_ID\][^\[\]{}]*)?(?:\[ARGS\])?\s*")


def _read_named_call(scanner: Scanner) -> Scan[None]:
    """Read a name, an id and the arguments: f[CALL_ID]id[ARGS]{...}."""
    head, _ = yield from read_until(scanner, ("{",), 2 * MAX_NAME_CHARS)
    match = _NAMED.fullmatch(head)
    if match is None or len(match[1]) > MAX_NAME_CHARS:
        raise NotACall
    scanner.start_call(match[1])
    yield from read_json_value(scanner, "{", scanner.add_arguments)
    scanner.end_call()


def _format(
    name: str, style: JsonCalls, prefill: str, *, is_special: bool = True, name_key: str = "name",
    arguments_key: str = "arguments",
) -> ToolFormat:  # fmt: skip
    return ToolFormat(
        name=name, make_parser=style.make_parser, prefill=prefill, separator=", " if prefill.endswith("[") else "; ",
        name_key=name_key, arguments_key=arguments_key, has_special_markers=is_special,
    )  # fmt: skip


FORCED = JsonCalls(bare=("{",))
"""Reads the answer to a prompt that ends with a format's prefill: bare objects, whatever the model's own format is."""

_JSON_CALL = CallNotation(before_name='{"name": "', after_name='", "arguments": ', after_arguments="}")
HERMES = replace(
    _format("hermes", JsonCalls(("<tool_call>",), ("</tool_call>",)), "<tool_call>\n", is_special=False),
    auto_notation=replace(
        _JSON_CALL, begin="<tool_call>\n", separator="\n</tool_call>\n<tool_call>\n", end="\n</tool_call>"
    ),
)
LLAMA3 = _format(
    "llama3",
    JsonCalls(("<|python_tag|>",), ("```", "<|eom_id|>", "<|eot_id|>"), ("{", "[", "```json", "```\n")),
    "",
    arguments_key="parameters",
)
MISTRAL = replace(
    _format(
        "mistral",
        JsonCalls(("[TOOL_CALLS]",), has_named_calls=True, reasoning={"[THINK]": "[/THINK]"}),
        "[TOOL_CALLS][",
    ),
    num_id_chars=9,
    auto_notation=replace(_JSON_CALL, begin="[TOOL_CALLS][", separator=", ", end="]"),
)
MISTRAL_ARGS = replace(
    MISTRAL,
    auto_notation=CallNotation(begin="[TOOL_CALLS]", before_name="", after_name="[ARGS]", separator="[TOOL_CALLS]"),
)
"""The format as newer models write it; the parser reads both."""
_PHI4 = JsonCalls(("<|tool_call|>", "functools"), ("<|/tool_call|>",))
PHI4 = replace(
    _format("phi4", _PHI4, "<|tool_call|>["),
    auto_notation=replace(_JSON_CALL, begin="<|tool_call|>[", separator=", ", end="]<|/tool_call|>"),
)
PHI4_FUNCTOOLS = _format("phi4-functools", _PHI4, "functools[", is_special=False)
GRANITE = _format("granite", JsonCalls(("<|tool_call|>", "<tool_call>"), ("</tool_call>",)), "<|tool_call|>[")
_COMMAND = JsonCalls(
    ("<|START_ACTION|>", "Action: ```json", "Action:```json", "Action:\n```json"),
    ("<|END_ACTION|>", "```"),
    hidden=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    reasoning={"<|START_THINKING|>": "<|END_THINKING|>"},
)
COMMAND_R = _format(
    "command-r", _COMMAND, "Action: ```json\n[", is_special=False, name_key="tool_name", arguments_key="parameters"
)
COMMAND_A = replace(
    _format("command-a", _COMMAND, "<|START_ACTION|>[", name_key="tool_name", arguments_key="parameters"),
    make_text_parser=lambda: replace(_COMMAND, markers=()).make_parser({}),
)
JSON_TAGS = _format(
    "json-tags",
    JsonCalls(
        ("<tool_calls>", "<TOOLCALL>", "<function_call>", "<|action_start|><|plugin|>"),
        ("</tool_calls>", "</TOOLCALL>", "</function_call>", "<|action_end|>"),
    ),
    "",
    is_special=False,
)

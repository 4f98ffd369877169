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

from chairlift.text.tool_formats.answer_scan_and_marker_readers import (
    read_closing,
    read_past_space,
    read_until,
    scan_answer,
)
from chairlift.text.tool_formats.base import (
    MAX_NAME_CHARS,
    NINE,
    NUMBER,
    SPACE,
    SPACES,
    CallNotation,
    ToolFormat,
    ToolSchemas,
)
from chairlift.text.tool_formats.call_object_reader import read_call_object
from chairlift.text.tool_formats.json_values import read_json_value
from chairlift.text.tool_formats.scanner import NotACall, Scan, Scanner, ScanningParser
from chairlift.text.tool_formats.tool_call_parser import ToolCallParser

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


def _json_notation(begin: str, end: str, keys: tuple[str, str] = ("name", "arguments")) -> CallNotation:
    """Return the notation of a list of objects with these keys, of which `begin` and `end` have the brackets."""
    return CallNotation(
        begin=f"{begin}{SPACES}",
        before_name=f'{{{SPACES}"{keys[0]}"{SPACES}:{SPACES}"',
        after_name=f'"{SPACES},{SPACES}"{keys[1]}"{SPACES}:{SPACES}',
        after_arguments=f"{SPACES}}}",
        separator=f"{SPACES},{SPACES}",
        end=f"{SPACES}{end}",
    )


FORCED = JsonCalls(bare=("{",))
"""Reads the answer to a prompt that ends with a format's prefill: bare objects, whatever the model's own format is."""

_JSON_CALL = CallNotation(before_name='{"name": "', after_name='", "arguments": ', after_arguments="}")
HERMES = replace(
    _format("hermes", JsonCalls(("<tool_call>",), ("</tool_call>",)), "<tool_call>\n", is_special=False),
    auto_notations=(
        replace(_JSON_CALL, begin="<tool_call>\n", separator="\n</tool_call>\n<tool_call>\n", end="\n</tool_call>"),
    ),
)
_LLAMA3_CALL = CallNotation(
    begin=f"{SPACES}{{",
    before_name=f'{SPACES}"name"{SPACES}:{SPACES}"',
    other_before_names=(f'{SPACES}"type"{SPACES}:{SPACES}"function"{SPACES},{SPACES}"name"{SPACES}:{SPACES}"',),
    after_name=f'"{SPACES},{SPACES}"parameters"{SPACES}:{SPACES}',
    after_arguments=f"{SPACES}}}",
    separator=f"{SPACES};{SPACES}{{",
    is_bare=True,
)
LLAMA3 = replace(
    _format(
        "llama3",
        JsonCalls(("<|python_tag|>",), ("```", "<|eom_id|>", "<|eot_id|>"), ("{", "[", "```json", "```\n")),
        "",
        arguments_key="parameters",
    ),
    auto_notations=(_LLAMA3_CALL, replace(_LLAMA3_CALL, begin=f"<|python_tag|>{SPACES}{{", is_bare=False)),
    first_call_starts=(r"(```json|```\n)?[ \t\r\n]*(\[[ \t\r\n]*)?\{",),
)
_MISTRAL = JsonCalls(("[TOOL_CALLS]",), has_named_calls=True, reasoning={"[THINK]": "[/THINK]"})
MISTRAL = replace(
    _format("mistral", _MISTRAL, "[TOOL_CALLS]["),
    num_id_chars=9,
    auto_notations=(replace(_JSON_CALL, begin="[TOOL_CALLS][", separator=", ", end="]"),),
    call_starts=(r"\[THINK\]",),
)
_MISTRAL_ARGS = CallNotation(begin="[TOOL_CALLS]", before_name="", after_name="[ARGS]", separator="[TOOL_CALLS]")
MISTRAL_ARGS = replace(MISTRAL, prefill="", notation=_MISTRAL_ARGS, auto_notations=(_MISTRAL_ARGS,))
"""The format as newer models write it; the parser reads all three."""
_MISTRAL_IDS = replace(_MISTRAL_ARGS, after_name=f"[CALL_ID]{NINE}[ARGS]")
MISTRAL_IDS = replace(MISTRAL, prefill="", notation=_MISTRAL_IDS, auto_notations=(_MISTRAL_IDS,))
"""The format of Mistral Small 3, whose calls have their ids."""
_PHI4 = JsonCalls(("<|tool_call|>", "functools"), ("<|/tool_call|>",))
_PHI4_AUTO = (
    _json_notation(f"<|tool_call|>{SPACES}[", f"]{SPACES}<|/tool_call|>"),
    _json_notation("functools[", "]"),
)
_FUNCTOOLS = r"functools[ \t\r\n]*[\[{]"
PHI4 = replace(_format("phi4", _PHI4, "<|tool_call|>["), auto_notations=_PHI4_AUTO, call_starts=(_FUNCTOOLS,))
PHI4_FUNCTOOLS = replace(
    _format("phi4-functools", _PHI4, "functools[", is_special=False),
    auto_notations=_PHI4_AUTO,
    call_starts=(_FUNCTOOLS,),
)
GRANITE = replace(
    _format("granite", JsonCalls(("<|tool_call|>", "<tool_call>"), ("</tool_call>",)), "<|tool_call|>["),
    auto_notations=tuple(_json_notation(f"{marker}{SPACES}[", "]") for marker in ("<|tool_call|>", "<tool_call>")),
)
_COMMAND = JsonCalls(
    ("<|START_ACTION|>", "Action: ```json", "Action:```json", "Action:\n```json"),
    ("<|END_ACTION|>", "```"),
    hidden=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    reasoning={"<|START_THINKING|>": "<|END_THINKING|>"},
)
_COMMAND_KEYS = ("tool_name", "parameters")
_COMMAND_ID = f'{{{SPACES}"tool_call_id"{SPACES}:{SPACES}"{NUMBER}"{SPACES},{SPACES}"tool_name"{SPACES}:{SPACES}"'
_COMMAND_STARTS = r"Action:[ \n]?```json", r"<\|START_THINKING\|>"
COMMAND_R = replace(
    _format(
        "command-r", _COMMAND, "Action: ```json\n[", is_special=False, name_key="tool_name", arguments_key="parameters"
    ),
    auto_notations=(_json_notation(f"Action: ```json{SPACES}[", f"]{SPACES}```", _COMMAND_KEYS),),
    call_starts=(*_COMMAND_STARTS, r"<\|START_ACTION\|>"),
    other_markers=_COMMAND.hidden,
)
COMMAND_A = replace(
    _format("command-a", _COMMAND, "<|START_ACTION|>[", name_key="tool_name", arguments_key="parameters"),
    make_text_parser=lambda: replace(_COMMAND, markers=()).make_parser({}),
    auto_notations=(
        replace(
            _json_notation(f"<|START_ACTION|>{SPACES}[", f"]{SPACES}<|END_ACTION|>", _COMMAND_KEYS),
            other_before_names=(_COMMAND_ID,),
        ),
    ),
    call_starts=_COMMAND_STARTS,
    other_markers=_COMMAND.hidden,
)
WITH_REASONING = (
    replace(MISTRAL, make_parser=replace(_MISTRAL, reasoning={}).make_parser),
    replace(COMMAND_R, make_parser=replace(_COMMAND, reasoning={}).make_parser),
    replace(
        COMMAND_A,
        make_parser=replace(_COMMAND, reasoning={}).make_parser,
        make_text_parser=lambda: replace(_COMMAND, markers=(), reasoning={}).make_parser({}),
    ),
)
"""The formats that separate reasoning, with parsers that leave it in the text."""
_PLUGIN = "<|action_start|><|plugin|>"
_PLUGIN_END = f"{SPACES}<|action_end|>"
JSON_TAGS = replace(
    _format(
        "json-tags",
        JsonCalls(
            ("<tool_calls>", "<TOOLCALL>", "<function_call>", _PLUGIN),
            ("</tool_calls>", "</TOOLCALL>", "</function_call>", "<|action_end|>"),
        ),
        "",
        is_special=False,
    ),
    auto_notations=(
        _json_notation(f"<tool_calls>{SPACES}[", f"]{SPACES}</tool_calls>"),
        _json_notation(f"<TOOLCALL>{SPACES}[", f"]{SPACES}</TOOLCALL>"),
        replace(_json_notation("<function_call>", ""), end="", separator=f"{SPACES}<function_call>{SPACES}"),
        replace(
            _json_notation(_PLUGIN, "", ("name", "parameters")),
            end=_PLUGIN_END,
            separator=f"{_PLUGIN_END}{SPACES}{_PLUGIN}{SPACES}",
        ),
    ),
)

"""tool_call_grammar, generic_grammar: grammars of answers that must call tools, and of the generic format.

A forced call's prompt ends with the marker of a call, and the answer is one bare call after another:

    {"name": "f", "arguments": {...}}; {"name": "g", "arguments": {...}}

Where the prompt ends with the beginning of a list, a comma stands between the calls. The answer of a model that reasons
first has the marker, too, and formats with a notation of their own write it: GPT-OSS and DeepSeek. A marker
that is a token of the vocabulary stands in the grammar as this token.
A model without a format of its own writes {"tool_calls": [...]} or {"response": "..."}, as the generic prompt asks.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from chairlift.core.lark_grammar import WHITESPACE, lark_regex, lark_sequence, lark_string
from chairlift.core.structured_output import ReasoningPrefix
from chairlift.text.tool_formats.base import NUMBER, SPACES, CallNotation, ToolCallParser, ToolFormat, ToolSchemas
from chairlift.text.tool_formats.generic import GENERIC, RESPONSE, TOOL_CALLS
from chairlift.text.tool_formats.json_calls import FORCED

MARKER = re.compile(r"(<[^<>\s]+>|\[[A-Z_]+\])")
"""A text that may be a special token."""
_PART = re.compile(rf"{MARKER.pattern}|([{SPACES}{NUMBER}])")
"""Also a marker that is not a special token is a part: rules that begin with the same marker then share its lexeme."""
_TERMINALS = {SPACES: r"SPACES: /[ \n\r\t]{1,40}/", NUMBER: "NUMBER: /[0-9]{1,4}/"}


def forced_call_parser(schemas: ToolSchemas) -> ToolCallParser:
    """Make the parser of an answer that `tool_call_grammar` enforced, whatever the model's own format is."""
    return FORCED.make_parser(schemas)


def marker_ids(tool_format: ToolFormat, encode: Callable[[str], Sequence[int]]) -> dict[str, int]:
    """Return the markers of a format's calls and answers that are one token each, with their ids."""
    notations = (*tool_format.auto_notations, *(() if tool_format.notation is None else (tool_format.notation,)))
    texts = [tool_format.prefill, *tool_format.other_markers, *(text for each in notations for text in each.texts)]
    ids = {marker: encode(marker) for text in texts for marker in MARKER.findall(text)}
    return {marker: tokens[0] for marker, tokens in ids.items() if len(tokens) == 1}


def tool_call_grammar(tool_format: ToolFormat, schemas: Mapping[str, Any], *, several: bool) -> str:
    """Return a Lark grammar of one or several calls of the tools in `schemas`, behind `reasoning_prefix`.

    `schemas` maps a tool's name to the JSON Schema of its arguments, in a form that StructuredOutput accepts.
    """
    ids, notation = tool_format.token_ids, tool_format.notation
    separator: str | None
    if notation is None:
        begin, separator, end = tool_format.prefill if tool_format.follows_reasoning else "", tool_format.separator, ""
    else:
        begin, separator, end = notation.begin if notation.reasoning is None else "", notation.separator, notation.end
    start = f"start: {lark_marked(begin, ids)} {repeated('call', separator, ids, several)} {lark_marked(end, ids)}"
    return "\n".join([start, *_call_rules(tool_format, notation, schemas)])


def reasoning_prefix(tool_format: ToolFormat) -> ReasoningPrefix | None:
    """Return what stands before forced calls in a format that marks reasoning itself; None for the others."""
    notation = tool_format.notation
    if notation is None or notation.reasoning is None:
        return None
    return replace(notation.reasoning, answer_start=notation.begin)


def generic_grammar(schemas: Mapping[str, Any], *, several: bool) -> str:
    """Return a Lark grammar of calls of the tools in `schemas`, or a response, in the generic format."""
    calls = f"call ({lark_string(', ')} call)*" if several else "call"
    return "\n".join([
        "start: calls | response",
        f"calls: {lark_string('{' + lark_string(TOOL_CALLS) + ': [')} {calls} {lark_string(']}')}",
        f"response: {lark_string('{' + lark_string(RESPONSE) + ': ')} text {lark_string('}')}",
        'text: %json {"type": "string"}',
        *_call_rules(GENERIC, None, schemas),
    ])  # fmt: skip


def _call_rules(
    tool_format: ToolFormat, notation: CallNotation | None, schemas: Mapping[str, Any]
) -> Iterable[str]:  # fmt: skip
    if notation is None:
        keys = tool_format.name_key, tool_format.arguments_key
        starts = [f'{{"{keys[0]}": {json.dumps(name)}, "{keys[1]}": ' for name in schemas]
        calls = [f'{lark_string(start)} arguments_{number} "}}"' for number, start in enumerate(starts)]
        yield f"call: {' | '.join(calls)}"
    else:
        yield call_rule("call", notation, schemas, tool_format.token_ids)
    yield from arguments_rules(schemas)


def call_rule(rule: str, notation: CallNotation, names: Iterable[str], ids: Mapping[str, int]) -> str:
    """Return the rule of a call of one of the tools, whose arguments have the rules arguments_0, arguments_1, ..."""
    before = " | ".join(lark_marked(text, ids) or '""' for text in (notation.before_name, *notation.other_before_names))
    after, end = lark_marked(notation.after_name, ids), lark_marked(notation.after_arguments, ids)
    calls = [f"{lark_string(name)} {after} arguments_{number}" for number, name in enumerate(names)]
    head = f"({before}) " if notation.before_name else ""
    return f"{rule}: {head}({' | '.join(calls)}) {end}"


def arguments_rules(schemas: Mapping[str, Any]) -> Iterable[str]:
    """Yield the rules of the arguments of each tool."""
    for number, schema in enumerate(schemas.values()):
        yield f"arguments_{number}: {lark_json(schema)}"


def repeated(call: str, separator: str | None, ids: Mapping[str, int], several: bool) -> str:
    """Return one call of the rule, or several where the notation has a separator."""
    return f"{call} ({lark_marked(separator, ids)} {call})*" if several and separator is not None else call


def terminals(lines: Iterable[str]) -> list[str]:
    """Return the lines of a grammar, with the terminals of SPACES and NUMBER that they use."""
    listed = list(lines)
    names = {line.partition(":")[0]: line for line in _TERMINALS.values()}
    return [*listed, *(line for name, line in names.items() if any(name in each for each in listed))]


def lark_json(schema: Mapping[str, Any]) -> str:
    """Return JSON of a schema, with bounded white space, for a Lark grammar."""
    return "%json " + json.dumps({**schema, "x-guidance": {"whitespace_pattern": WHITESPACE}})


def lark_marked(text: str, ids: Mapping[str, int]) -> str:
    """Return text of which the markers in `ids` are special tokens, for a Lark grammar."""
    names = {SPACES: "SPACES?", NUMBER: "NUMBER"}
    return " ".join(names.get(part) or lark_sequence(part, ids) for part in _PART.split(text) if part)


def notation_regex(text: str) -> str:
    """Return a regular expression of a Lark grammar that matches this text of a notation."""
    return lark_regex(text).replace(SPACES, WHITESPACE).replace(NUMBER, "[0-9]{1,4}")

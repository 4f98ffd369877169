"""tool_call_grammar, generic_grammar: grammars of answers that call tools.

The marker of a call is a special token in many vocabularies, which a grammar over text cannot produce. So a forced
call's prompt ends with the marker, and the answer is one bare call after another:

    {"name": "f", "arguments": {...}}; {"name": "g", "arguments": {...}}

Where the prompt ends with the beginning of a list, a comma stands between the calls.
A model without a format of its own writes {"tool_calls": [...]} or {"response": "..."}, as the generic prompt asks.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from chairlift.text.tool_formats.base import ToolCallParser, ToolFormat, ToolSchemas
from chairlift.text.tool_formats.generic import GENERIC, RESPONSE, TOOL_CALLS
from chairlift.text.tool_formats.json_calls import FORCED

WHITESPACE = r"[ \n\r\t]{0,40}"
"""White space between the parts of arguments; a grammar's %json does not bound it by default."""


def forced_call_parser(schemas: ToolSchemas) -> ToolCallParser:
    """Make the parser of an answer that `tool_call_grammar` enforced, whatever the model's own format is."""
    return FORCED.make_parser(schemas)


def tool_call_grammar(tool_format: ToolFormat, schemas: Mapping[str, Any], *, several: bool) -> str:
    """Return a Lark grammar of one or several calls of the tools in `schemas`.

    `schemas` maps a tool's name to the JSON Schema of its arguments, in a form that StructuredOutput accepts.
    """
    start = f"start: call ({_text(tool_format.separator)} call)*" if several else "start: call"
    return "\n".join([start, *_call_rules(tool_format, schemas)])


def generic_grammar(schemas: Mapping[str, Any], *, several: bool) -> str:
    """Return a Lark grammar of calls of the tools in `schemas`, or a response, in the generic format."""
    calls = f"call ({_text(', ')} call)*" if several else "call"
    return "\n".join([
        "start: calls | response",
        f"calls: {_text('{' + _text(TOOL_CALLS) + ': [')} {calls} {_text(']}')}",
        f"response: {_text('{' + _text(RESPONSE) + ': ')} text {_text('}')}",
        'text: %json {"type": "string"}',
        *_call_rules(GENERIC, schemas),
    ])  # fmt: skip


def _call_rules(tool_format: ToolFormat, schemas: Mapping[str, Any]) -> Iterable[str]:
    calls = []
    for number, name in enumerate(schemas):
        before = f'{{"{tool_format.name_key}": {json.dumps(name)}, "{tool_format.arguments_key}": '
        calls.append(f'{_text(before)} arguments_{number} "}}"')
    yield f"call: {' | '.join(calls)}"
    for number, schema in enumerate(schemas.values()):
        bounded = {**schema, "x-guidance": {"whitespace_pattern": WHITESPACE}}
        yield f"arguments_{number}: %json {json.dumps(bounded)}"


def _text(text: str) -> str:
    """Return a string literal of a Lark grammar."""
    return json.dumps(text)

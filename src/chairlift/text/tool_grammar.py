"""tool_call_grammar: the grammar of an output that must call one of the given tools.

The marker of a call is a special token in many vocabularies, which a grammar over text cannot produce. So the marker
ends the prompt, and the output is one bare call after another:

    {"name": "f", "arguments": {...}}; {"name": "g", "arguments": {...}}
"""

import json
from collections.abc import Mapping
from typing import Any

from chairlift.text.tool_parser import CLOSE, HERMES, LLAMA3, MISTRAL

READ_AS = LLAMA3
"""The format of a forced call, which does not depend on the model's own format."""

WHITESPACE = r"[ \n\r\t]{0,40}"
"""White space between the parts of arguments; a grammar's %json does not bound it by default."""

_PREFILL = {HERMES: "<tool_call>\n", MISTRAL: "[TOOL_CALLS][", LLAMA3: ""}
_ARGUMENTS = {HERMES: "arguments", MISTRAL: "arguments", LLAMA3: "parameters"}


def prefill(notation: str) -> str:
    """Return the start of an answer that calls a tool, up to its first brace, in the model's format."""
    return _PREFILL[notation]


def tool_call_grammar(notation: str, schemas: Mapping[str, Any], *, several: bool) -> str:
    """Return a Lark grammar of one or several calls of the tools in `schemas`.

    `schemas` maps a tool's name to the JSON Schema of its arguments, in a form that StructuredOutput accepts.
    """
    call = '{"name": %s, "' + _ARGUMENTS[notation] + '": '
    calls = [f'{_text(call % json.dumps(name))} arguments_{number} "}}"' for number, name in enumerate(schemas)]
    rules = [f"start: call ({_text(CLOSE[READ_AS] + ' ')} call)*" if several else "start: call"]
    rules += [f"call: {' | '.join(calls)}"]
    for number, schema in enumerate(schemas.values()):
        bounded = {**schema, "x-guidance": {"whitespace_pattern": WHITESPACE}}
        rules.append(f"arguments_{number}: %json {json.dumps(bounded)}")
    return "\n".join(rules)


def _text(text: str) -> str:
    """Return a string literal of a Lark grammar."""
    return json.dumps(text)

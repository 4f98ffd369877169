"""Forced calls: the grammar of an answer that has to call one of some tools.

What marks a call is a token of its own in many vocabularies, which a grammar over text cannot spell. So the mark stands
at the end of the prompt, and the answer is one bare call after another:

    {"name": "f", "arguments": {...}}; {"name": "g", "arguments": {...}}
"""

import json
from collections.abc import Mapping
from typing import Any

from chairlift.text.tool_parser import CLOSE, HERMES, LLAMA3, MISTRAL

READ_AS = LLAMA3
"""The notation in which a forced answer is read, whatever the model's own is."""

WHITESPACE = r"[ \n\r\t]{0,40}"
"""Between the parts of arguments; left to itself, a grammar's %json lets it go on without end."""

_PREFILL = {HERMES: "<tool_call>\n", MISTRAL: "[TOOL_CALLS][", LLAMA3: ""}
_ARGUMENTS = {HERMES: "arguments", MISTRAL: "arguments", LLAMA3: "parameters"}


def prefill(notation: str) -> str:
    """Return the beginning of an answer that calls a tool, in the model's own notation, up to its first brace."""
    return _PREFILL[notation]


def forced_calls(notation: str, schemas: Mapping[str, Any], *, several: bool) -> str:
    """Return a Lark grammar of one call, or of several, of tools by name and JSON Schema of their arguments.

    The schemas are objects that StructuredOutput takes.
    """
    said = '{"name": %s, "' + _ARGUMENTS[notation] + '": '
    calls = [f'{_text(said % json.dumps(name))} arguments_{number} "}}"' for number, name in enumerate(schemas)]
    rules = [f"start: call ({_text(CLOSE[READ_AS] + ' ')} call)*" if several else "start: call"]
    rules += [f"call: {' | '.join(calls)}"]
    for number, schema in enumerate(schemas.values()):
        bounded = {**schema, "x-guidance": {"whitespace_pattern": WHITESPACE}}
        rules.append(f"arguments_{number}: %json {json.dumps(bounded)}")
    return "\n".join(rules)


def _text(text: str) -> str:
    """Return a string of a Lark grammar."""
    return json.dumps(text)

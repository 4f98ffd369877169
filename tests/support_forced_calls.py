"""compiled, takes, call: grammars of forced calls, whether they take an output, and calls as the model writes them."""

import json
from collections.abc import Mapping
from typing import Any

from chairlift.engine.structured.grammar_matcher import GrammarMatcher
from chairlift.text.forced_call_grammar import tool_call_grammar
from chairlift.text.tool_formats.base import ToolFormat
from support_grammars import EOS, allowed_tokens, grammar_of

INTEGER = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
WORDS = {"type": "object", "additionalProperties": {"enum": ['a}b"; {', "é\n", ""]}}
TOOLS = {"f": INTEGER, "f2": INTEGER, "g": WORDS}


def compiled(tool_format: ToolFormat, schemas: Mapping[str, Any] = TOOLS, *, several: bool = True) -> GrammarMatcher:
    return grammar_of(grammar=tool_call_grammar(tool_format, schemas, several=several))


def takes(grammar: GrammarMatcher, response: str) -> bool:
    """Whether this can be the whole output."""
    for byte in response.encode():
        if byte not in allowed_tokens(grammar):
            return False
        grammar.advance(byte)
    return grammar.is_terminated or EOS in allowed_tokens(grammar)


def call(tool_format: ToolFormat, name: str, arguments: str) -> str:
    return f'{{"{tool_format.name_key}": {json.dumps(name)}, "{tool_format.arguments_key}": {arguments}}}'

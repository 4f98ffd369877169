"""tool_call_grammar, generic_grammar: grammars of answers that must call tools, and of the generic format.

A forced call's prompt ends with the marker of a call, and the answer is one bare call after another:

    {"name": "f", "arguments": {...}}; {"name": "g", "arguments": {...}}

Where the prompt ends with the beginning of a list, a comma stands between the calls. The answer of a model that reasons
first has the marker, too. Formats whose calls are no JSON objects write their own notation, as GPT-OSS, Qwen3-Coder,
Gemma and the Python calls do. A marker that is a token of the vocabulary stands in the grammar as this token.
A model without a format of its own writes {"tool_calls": [...]} or {"response": "..."}, as the generic prompt asks.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from chairlift.core.lark_grammar_terms import lark_string
from chairlift.core.structured_output import ReasoningPrefix
from chairlift.text.call_grammar_rules import MARKER, arguments_rules, call_rule, lark_marked, repeated, terminals
from chairlift.text.keyword_argument_grammar import keyword_arguments_rules
from chairlift.text.tagged_argument_grammar import tagged_arguments_rules
from chairlift.text.tool_formats.base import CallNotation, ToolFormat, ToolSchemas
from chairlift.text.tool_formats.generic import GENERIC, RESPONSE, TOOL_CALLS
from chairlift.text.tool_formats.json_calls import FORCED
from chairlift.text.tool_formats.tool_call_parser import ToolCallParser


def forced_call_parser(schemas: ToolSchemas) -> ToolCallParser:
    """Make the parser of an answer that `tool_call_grammar` enforced, whatever the model's own format is."""
    return FORCED.make_parser(schemas)


def marker_ids(tool_format: ToolFormat, encode: Callable[[str], Sequence[int]]) -> dict[str, int]:
    """Return the markers of a format's calls and answers that are one token each, with their ids."""
    notations = (*tool_format.auto_notations, *(() if tool_format.notation is None else (tool_format.notation,)))
    texts = [tool_format.prefill, *tool_format.other_markers, *(text for each in notations for text in each.texts)]
    ids = {marker: encode(marker) for text in texts for marker in MARKER.findall(text)}
    return {marker: tokens[0] for marker, tokens in ids.items() if len(tokens) == 1}


def tool_call_grammar(
    tool_format: ToolFormat, schemas: Mapping[str, Any], *, several: bool, parsed: ToolSchemas | None = None
) -> str:  # fmt: skip
    """Return a Lark grammar of one or several calls of the tools in `schemas`, behind `reasoning_prefix`.

    `schemas` maps a tool's name to the JSON Schema of its arguments, in a form that StructuredOutput accepts. The
    parser of the answer has the schemas `parsed`, or `schemas` if it is None.

    Raises:
        NoTaggedArgumentsError: the format's notation has no JSON objects, and cannot express the arguments of a tool.
    """
    ids, notation = tool_format.token_ids, tool_format.notation
    separator: str | None
    if notation is None:
        begin, separator, end = tool_format.prefill if tool_format.follows_reasoning else "", tool_format.separator, ""
    else:
        begin, separator, end = notation.begin if notation.reasoning is None else "", notation.separator, notation.end
    start = f"start: {lark_marked(begin, ids)} {repeated('call', separator, ids, several)} {lark_marked(end, ids)}"
    rules = _call_rules(tool_format, notation, schemas, schemas if parsed is None else parsed)
    return "\n".join(terminals([start, *rules]))


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
        *_call_rules(GENERIC, None, schemas, schemas),
    ])  # fmt: skip


def _call_rules(
    tool_format: ToolFormat, notation: CallNotation | None, schemas: Mapping[str, Any], parsed: ToolSchemas
) -> Iterable[str]:  # fmt: skip
    if notation is None:
        keys = tool_format.name_key, tool_format.arguments_key
        starts = [f'{{"{keys[0]}": {json.dumps(name)}, "{keys[1]}": ' for name in schemas]
        calls = [f'{lark_string(start)} arguments_{number} "}}"' for number, start in enumerate(starts)]
        yield f"call: {' | '.join(calls)}"
    else:
        ids = tool_format.token_ids
        yield call_rule("call", notation, schemas, ids)
        if notation.argument_tags is not None:
            yield from tagged_arguments_rules(notation.argument_tags, schemas, parsed, ids)
            return
        if notation.keyword_arguments is not None:
            yield from keyword_arguments_rules(notation.keyword_arguments, schemas, parsed, ids)
            return
    yield from arguments_rules(schemas)

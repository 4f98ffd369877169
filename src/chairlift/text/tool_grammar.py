"""tool_call_grammar, optional_call_grammar, generic_grammar: grammars of answers that call tools.

A forced call's prompt ends with the marker of a call, and the answer is one bare call after another:

    {"name": "f", "arguments": {...}}; {"name": "g", "arguments": {...}}

Where the prompt ends with the beginning of a list, a comma stands between the calls. The answer of a model that reasons
first has the marker, too, and formats with a notation of their own write it: GPT-OSS and DeepSeek. A marker
that is a token of the vocabulary stands in the grammar as this token.
An answer that may call has text up to the first marker of the format's auto_notation, which begins an enforced call.
A model without a format of its own writes {"tool_calls": [...]} or {"response": "..."}, as the generic prompt asks.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from chairlift.core.structured_output import ReasoningPrefix
from chairlift.text.tool_formats.base import CallNotation, ToolCallParser, ToolFormat, ToolSchemas
from chairlift.text.tool_formats.generic import GENERIC, RESPONSE, TOOL_CALLS
from chairlift.text.tool_formats.json_calls import FORCED

_MARKER = re.compile(r"(<[^<>\s]+>|\[[A-Z_]+\])")
WHITESPACE = r"[ \n\r\t]{0,40}"
"""White space between the parts of arguments; a grammar's %json does not bound it by default."""


def forced_call_parser(schemas: ToolSchemas) -> ToolCallParser:
    """Make the parser of an answer that `tool_call_grammar` enforced, whatever the model's own format is."""
    return FORCED.make_parser(schemas)


def marker_ids(tool_format: ToolFormat, encode: Callable[[str], Sequence[int]]) -> dict[str, int]:
    """Return the markers in the forced calls of a format that are one token each, with their ids."""
    notations = [each for each in (tool_format.notation, tool_format.auto_notation) if each is not None]
    texts = [tool_format.prefill, *(text for notation in notations for text in (
        notation.begin, notation.before_name, notation.after_name, notation.after_arguments, notation.separator or "",
        notation.end,
    ))]  # fmt: skip
    ids = {marker: encode(marker) for text in texts for marker in _MARKER.findall(text)}
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
    start = f"start: {_marked(begin, ids)} {_repeated(separator, ids, several)} {_marked(end, ids)}"
    return "\n".join([start, *_call_rules(tool_format, notation, schemas)])


def optional_call_grammar(
    tool_format: ToolFormat, schemas: Mapping[str, Any], *, several: bool, answer: Mapping[str, Any] | None = None
) -> str:
    """Return a Lark grammar of calls in the format's auto_notation after any text, or of text without a call.

    With `answer`, a JSON Schema, it is a grammar of calls, or of an answer of this schema.
    """
    notation, ids = tool_format.auto_notation, tool_format.token_ids
    assert notation is not None, "the format has one"
    calls = f"{_repeated(notation.separator, ids, several)} {_marked(notation.end, ids)}"
    rules = _call_rules(tool_format, notation, schemas)
    if answer is not None:
        start = f"start: {_marked(notation.begin, ids)} {calls} | answer"
        return "\n".join([start, f"answer: %json {_bounded(answer)}", *rules])
    markers = list(dict.fromkeys(_MARKER.findall(notation.begin + notation.before_name)))
    # The text must not spell a marker in ordinary tokens either: the parser could not tell them apart.
    no_marker = "".join(f" & ~/(?s:.*){_regex(marker)}(?s:.*)/" for marker in markers)
    lines = [f"TEXT: /(?s:.*)/{no_marker}"]
    if markers[0] in ids:
        lines.insert(0, f"start: TEXT? | TEXT? {_marked(notation.begin, ids)} {calls}")
    else:
        assert notation.begin.startswith(markers[0]), "every auto_notation begins with a marker"
        rest = _marked(notation.begin.removeprefix(markers[0]), ids)
        lines.append(f"TEXT_AND_MARKER: /(?s:.*){_regex(markers[0])}/ & ~/(?s:.*){_regex(markers[0])}(?s:.+)/")
        lines.insert(0, f"start: TEXT? | TEXT_AND_MARKER {rest} {calls}")
    return "\n".join([*lines, *rules])


def _repeated(separator: str | None, ids: Mapping[str, int], several: bool) -> str:
    return f"call ({_marked(separator, ids)} call)*" if several and separator is not None else "call"


def reasoning_prefix(tool_format: ToolFormat) -> ReasoningPrefix | None:
    """Return what stands before forced calls in a format that marks reasoning itself; None for the others."""
    notation = tool_format.notation
    if notation is None or notation.reasoning is None:
        return None
    start, end = notation.reasoning
    return ReasoningPrefix(starts=(start,), ends=(end,), answer_start=notation.begin)


def generic_grammar(schemas: Mapping[str, Any], *, several: bool) -> str:
    """Return a Lark grammar of calls of the tools in `schemas`, or a response, in the generic format."""
    calls = f"call ({_text(', ')} call)*" if several else "call"
    return "\n".join([
        "start: calls | response",
        f"calls: {_text('{' + _text(TOOL_CALLS) + ': [')} {calls} {_text(']}')}",
        f"response: {_text('{' + _text(RESPONSE) + ': ')} text {_text('}')}",
        'text: %json {"type": "string"}',
        *_call_rules(GENERIC, None, schemas),
    ])  # fmt: skip


def _call_rules(
    tool_format: ToolFormat, notation: CallNotation | None, schemas: Mapping[str, Any]
) -> Iterable[str]:  # fmt: skip
    ids = tool_format.token_ids
    calls = []
    for number, name in enumerate(schemas):
        if notation is not None:
            before = _marked(notation.before_name, ids), _text(name), _marked(notation.after_name, ids)
            calls.append(f"{' '.join(before)} arguments_{number} {_marked(notation.after_arguments, ids)}")
            continue
        start = f'{{"{tool_format.name_key}": {json.dumps(name)}, "{tool_format.arguments_key}": '
        calls.append(f'{_text(start)} arguments_{number} "}}"')
    yield f"call: {' | '.join(calls)}"
    for number, schema in enumerate(schemas.values()):
        yield f"arguments_{number}: %json {_bounded(schema)}"


def _bounded(schema: Mapping[str, Any]) -> str:
    """Return a schema as JSON, with bounded white space."""
    return json.dumps({**schema, "x-guidance": {"whitespace_pattern": WHITESPACE}})


def _marked(text: str, ids: Mapping[str, int]) -> str:
    """Return text of which the markers in `ids` are special tokens, for a Lark grammar."""
    parts = _MARKER.split(text)
    return " ".join(f"<[{ids[part]}]>" if part in ids else _text(part) for part in parts if part)


def _regex(text: str) -> str:
    """Return a regular expression of a Lark grammar that matches exactly this text."""
    return re.escape(text).replace("/", r"\/")


def _text(text: str) -> str:
    """Return a string literal of a Lark grammar."""
    return json.dumps(text)

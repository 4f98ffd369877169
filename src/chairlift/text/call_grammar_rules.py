"""call_rule, arguments_rules, lark_marked: rules that the grammars of forced and optional calls share."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from chairlift.core.lark_grammar_terms import WHITESPACE, lark_regex, lark_sequence, lark_string
from chairlift.text.tool_formats.base import NINE, NUMBER, SPACES, CallNotation

MARKER = re.compile(r"(<[^<>\s]+>|\[[A-Z_]+\])")
"""A text that may be a special token."""

_PART = re.compile(rf"{MARKER.pattern}|([{SPACES}{NUMBER}{NINE}])")
"""Also a marker that is not a special token is a part: rules that begin with the same marker then share its lexeme."""

_TERMINALS = {
    SPACES: r"SPACES: /[ \n\r\t]{1,40}/", NUMBER: "NUMBER: /[0-9]{1,4}/", NINE: "NINE: /[A-Za-z0-9]{9}/",
}  # fmt: skip


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
    """Return the lines of a grammar, with the terminals of SPACES, NUMBER and NINE that they use."""
    listed = list(lines)
    names = {line.partition(":")[0]: line for line in _TERMINALS.values()}
    return [*listed, *(line for name, line in names.items() if any(name in each for each in listed))]


def lark_json(schema: Mapping[str, Any]) -> str:
    """Return JSON of a schema, with bounded white space, for a Lark grammar."""
    return "%json " + json.dumps({**schema, "x-guidance": {"whitespace_pattern": WHITESPACE}})


def lark_marked(text: str, ids: Mapping[str, int]) -> str:
    """Return text of which the markers in `ids` are special tokens, for a Lark grammar."""
    names = {SPACES: "SPACES?", NUMBER: "NUMBER", NINE: "NINE"}
    return " ".join(names.get(part) or lark_sequence(part, ids) for part in _PART.split(text) if part)


def notation_regex(text: str) -> str:
    """Return a regular expression of a Lark grammar that matches this text of a notation."""
    return lark_regex(text).replace(SPACES, WHITESPACE).replace(NUMBER, "[0-9]{1,4}").replace(NINE, "[A-Za-z0-9]{9}")

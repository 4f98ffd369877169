"""XmlCalls: formats whose calls have a tag for the function and one for each argument.

qwen3-coder     <tool_call><function=f><parameter=k>v</parameter></function></tool_call>
minimax         <minimax:tool_call><invoke name="f"><parameter name="k">v</parameter></invoke></minimax:tool_call>
deepseek-v3.2   <｜DSML｜function_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="k" string="true">v, end tags

The tool's schema says which arguments are strings, unless the tag itself does.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from chairlift.text.tool_formats.answer_scan_and_marker_readers import (
    ValueEnds,
    read_closing,
    read_token,
    read_until,
    read_value,
    scan_answer,
)
from chairlift.text.tool_formats.arguments_writer import ArgumentsWriter
from chairlift.text.tool_formats.base import MAX_NAME_CHARS, SPACES, ArgumentTags, CallNotation, ToolFormat, ToolSchemas
from chairlift.text.tool_formats.json_calls import read_objects
from chairlift.text.tool_formats.json_values import is_json, json_string, read_valid_json
from chairlift.text.tool_formats.non_json_values import python_json
from chairlift.text.tool_formats.scanner import EndOfAnswer, NotACall, Scan, Scanner, ScanningParser
from chairlift.text.tool_formats.tool_call_parser import ToolCallParser

_NAME = re.compile(r"\s*([^\s<>{}\[\]\"']+)\s*")
_TAG = re.compile(r"""(?P<key>[^"]*)(?:"(?:\s+string="(?P<is_string>\w+)")?)?(?P<rest>.*)""")
_CUT_JSON = re.compile(r"""\s*([\[{"]|(-?[\d.]*([eE][-+]?\d*)?|t(r(ue?)?)?|f(a(l(se?)?)?)?|n(u(ll?)?)?)\s*\Z)""")
"""The beginning of a JSON value, of which the end is missing."""


@dataclass(frozen=True, slots=True)
class XmlCalls:
    """The tags of a format.

    Attributes:
        sections: before the first call; they may be missing.
        call: start of the tag with the function's name.
        parameter: start of the tag with an argument's name.
        end_parameter: end tag of an argument.
        closing: end tags of a call and of a section.
    """

    sections: tuple[str, ...]
    call: str
    parameter: str
    end_parameter: str
    closing: tuple[str, ...]

    def make_parser(self, schemas: ToolSchemas) -> ToolCallParser:
        """Make the parser of one answer."""
        return ScanningParser(partial(_scan, style=self, schemas=schemas))


def _scan(scanner: Scanner, style: XmlCalls, schemas: ToolSchemas) -> Scan[None]:
    section = partial(_read_section, style=style, schemas=schemas)
    yield from scan_answer(scanner, (*style.sections, style.call), section)


def _read_section(scanner: Scanner, marker: str, style: XmlCalls, schemas: ToolSchemas) -> Scan[None]:
    if marker in style.sections:
        token = yield from read_token(scanner, (style.call, "{"))
        if token == "{":
            yield from read_objects(scanner, token, style.closing)
            yield from read_closing(scanner, style.closing)
            return
        if not token:
            yield from scanner.read()
            raise NotACall
    head, _ = yield from read_until(scanner, (">",), MAX_NAME_CHARS)
    name = function_name(head.partition('"')[0])
    scanner.start_call(name)
    arguments = ArgumentsWriter(scanner)
    ends = ValueEnds(style.end_parameter, style.closing, (style.call, *style.sections))
    while (yield from read_token(scanner, (style.parameter,))):
        try:
            tag, end = yield from read_until(scanner, (">", "\n", "<"), MAX_NAME_CHARS)
        except NotACall:
            scanner.unread_held()
            break
        match = _TAG.fullmatch(tag)
        assert match is not None
        if end != ">":  # it is missing
            scanner.unread(match["rest"] + end)
        is_string = match["is_string"] == "true"
        yield from read_argument(
            scanner, arguments, match["key"].strip(), schemas, name, ends=ends, is_string=is_string
        )
    arguments.end()
    yield from read_closing(scanner, style.closing)


def function_name(head: str) -> str:
    """Return the name of a function without white space around it. Raises NotACall for other text."""
    match = _NAME.fullmatch(head)
    if match is None:
        raise NotACall
    return match[1]


def read_argument(
    scanner: Scanner, arguments: ArgumentsWriter, key: str, schemas: ToolSchemas, name: str, *, ends: ValueEnds,
    is_string: bool = False,
) -> Scan[None]:  # fmt: skip
    """Read the value of an argument.

    A value that the tool's schema, or `is_string`, calls a string is written as it comes. Any other text is known to be
    JSON or not at its end. A string within JSON may contain the ends of a value.
    """
    if is_string or is_string_schema(_schema_of(schemas, name, key)):
        arguments.start_string(key)
        yield from read_value(scanner, ends, arguments.add_string)
        arguments.end_string()
        return
    if value := (yield from read_valid_json(scanner, ends.end)):
        arguments.add(key, value)
        return
    parts: list[str] = []
    try:
        yield from read_value(scanner, ends, parts.append)
    except EndOfAnswer:
        text = "".join(parts)
        arguments.add_cut(key, text.strip() if _CUT_JSON.match(text) else json_string(text)[:-1])
        raise
    arguments.add(key, argument_value("".join(parts), schemas, name, key))


def _schema_of(schemas: ToolSchemas, name: str, key: str) -> Any:
    properties = schemas.get(name, {}).get("properties")
    return properties.get(key) if isinstance(properties, Mapping) else None


def argument_value(text: str, schemas: ToolSchemas, name: str, key: str) -> str:
    """Return the JSON of an argument's text: JSON stays, unless the tool's schema says that it is a string.

    Where the schema allows no string, a Python literal becomes JSON: templates write True and None, and so do models.
    """
    schema = _schema_of(schemas, name, key)
    if is_string_schema(schema):
        return json_string(text)
    if is_json(text):
        return text.strip()
    value = python_json(text) if _excludes_strings(schema) else ""
    return json_string(text) if value[:1] in ("", '"') else value


def _excludes_strings(schema: Any, depth: int = 4) -> bool:
    """Return whether a schema names the types of its values, and no string is among them."""
    if not isinstance(schema, Mapping):
        return False
    if isinstance(kinds := schema.get("type"), str | list):
        return "string" not in ([kinds] if isinstance(kinds, str) else kinds)
    lists = (schema.get(word) for word in ("anyOf", "oneOf"))
    branches: list[Any] = next((each for each in lists if isinstance(each, list)), [])
    return bool(branches and depth) and all(_excludes_strings(each, depth - 1) for each in branches)


def is_string_schema(schema: Any, depth: int = 4) -> bool:
    """Return whether a schema allows strings, and nothing else but null."""
    if not isinstance(schema, Mapping):
        return False
    kinds = schema.get("type")
    if kinds is not None:
        listed = [kinds] if isinstance(kinds, str) else kinds
        return isinstance(listed, list) and "string" in listed and all(kind in ("string", "null") for kind in listed)
    if isinstance(values := schema.get("enum"), list):
        return bool(values) and all(isinstance(value, str) for value in values)
    for keyword in ("anyOf", "oneOf"):
        if depth and isinstance(branches := schema.get(keyword), list):
            typed = [each for each in branches if not (isinstance(each, Mapping) and each.get("type") == "null")]
            return bool(typed) and all(is_string_schema(each, depth - 1) for each in typed)
    return False


_CODER_NOTATIONS = tuple(
    CallNotation(
        begin=f"<{section}>{SPACES}", before_name="<function=", after_name=">",
        argument_tags=ArgumentTags(
            before_key=f"{SPACES}<parameter=", after_key=">", end="</parameter>",
            closing=("</function>", "</tool_call>", "</seed:tool_call>"),
        ),
        after_arguments=f"{SPACES}</function>", separator=f"{SPACES}</{section}>{SPACES}<{section}>{SPACES}",
        end=f"{SPACES}</{section}>",
    )
    for section in ("tool_call", "seed:tool_call")
)  # fmt: skip
QWEN_CODER = ToolFormat(
    name="qwen3-coder",
    make_parser=XmlCalls(
        ("<tool_call>", "<seed:tool_call>"), "<function=", "<parameter=", "</parameter>",
        ("</function>", "</tool_call>", "</seed:tool_call>"),
    ).make_parser,
    notation=_CODER_NOTATIONS[0],
    auto_notations=_CODER_NOTATIONS,
    call_starts=("<function=",),
)  # fmt: skip
SEED_CODER = replace(QWEN_CODER, notation=_CODER_NOTATIONS[1])
"""The format with the tags of Seed-OSS in forced calls; the parser reads both."""
_MINIMAX = CallNotation(
    begin=f"<minimax:tool_call>{SPACES}", before_name='<invoke name="', after_name='">',
    argument_tags=ArgumentTags(
        before_key=f'{SPACES}<parameter name="', after_key='">', end="</parameter>",
        closing=("</invoke>", "</minimax:tool_call>"),
    ),
    after_arguments=f"{SPACES}</invoke>", separator=SPACES, end=f"{SPACES}</minimax:tool_call>",
)  # fmt: skip
MINIMAX = ToolFormat(
    name="minimax",
    make_parser=XmlCalls(
        ("<minimax:tool_call>",), '<invoke name="', '<parameter name="', "</parameter>",
        ("</invoke>", "</minimax:tool_call>"),
    ).make_parser,
    notation=_MINIMAX,
    auto_notations=(_MINIMAX,),
    call_starts=('<invoke name="',),
)  # fmt: skip
DEEPSEEK_DSML = ToolFormat(
    name="deepseek-v3.2",
    make_parser=XmlCalls(
        ("<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"), '<｜DSML｜invoke name="', '<｜DSML｜parameter name="',
        "</｜DSML｜parameter>", ("</｜DSML｜invoke>", "</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"),
    ).make_parser,
    has_special_markers=True,
)  # fmt: skip

"""GLM: calls whose arguments are tagged, one by one; the tool's schema says which are strings.

glm   <tool_call>f, then <arg_key>k</arg_key><arg_value>v</arg_value> for each argument, </tool_call>;
      GLM-4 9B: at the beginning of the answer the name of a tool, a line break, {...}
"""

import re
from functools import partial

from chairlift.text.tool_formats.answer_scan_and_marker_readers import (
    ValueEnds,
    read_closing,
    read_token,
    read_until,
    scan_answer,
)
from chairlift.text.tool_formats.arguments_writer import ArgumentsWriter
from chairlift.text.tool_formats.base import (
    MAX_NAME_CHARS,
    NAMES,
    SPACES,
    ArgumentTags,
    CallNotation,
    ToolFormat,
    ToolSchemas,
)
from chairlift.text.tool_formats.json_calls import read_objects
from chairlift.text.tool_formats.json_values import read_json_value
from chairlift.text.tool_formats.scanner import EndOfAnswer, NotACall, Scan, Scanner, ScanningParser
from chairlift.text.tool_formats.tool_call_parser import ToolCallParser
from chairlift.text.tool_formats.xml_calls import function_name, read_argument

_WORDS = re.compile(r"\w\s+\w")
TOOL_CALL, END_TOOL_CALL = "<tool_call>", "</tool_call>"
KEY, END_KEY, VALUE, END_VALUE = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
VALUE_ENDS = ValueEnds(END_VALUE, (END_TOOL_CALL,), (TOOL_CALL,))


def _make_parser(schemas: ToolSchemas) -> ToolCallParser:
    return ScanningParser(partial(_scan, schemas=schemas))


def _scan(scanner: Scanner, schemas: ToolSchemas) -> Scan[None]:
    bare = [f"{name}\n{{" for name in schemas]
    yield from scan_answer(scanner, (TOOL_CALL,), partial(_read_call, schemas=schemas), bare=bare)


def _read_call(scanner: Scanner, marker: str, schemas: ToolSchemas) -> Scan[None]:
    head, end = marker, "{"
    if marker == TOOL_CALL:
        head, end = yield from read_until(scanner, (KEY, END_TOOL_CALL, "{"), MAX_NAME_CHARS)
        if end == "{" and not head.strip():
            yield from read_objects(scanner, end, (TOOL_CALL, END_TOOL_CALL))
            yield from read_closing(scanner, (END_TOOL_CALL,))
            return
    name = function_name(head.removesuffix("{"))
    scanner.start_call(name)
    if end == "{":
        yield from read_json_value(scanner, end, scanner.add_arguments, (TOOL_CALL, END_TOOL_CALL))
        scanner.end_call()
    else:
        arguments = ArgumentsWriter(scanner)
        while end == KEY and (yield from _read_argument(scanner, arguments, schemas, name)):
            end = yield from read_token(scanner, (KEY,))
        arguments.end()
    yield from read_closing(scanner, (END_TOOL_CALL,))


def _read_argument(scanner: Scanner, arguments: ArgumentsWriter, schemas: ToolSchemas, name: str) -> Scan[bool]:
    """Read an argument after the start of its key; return False, with everything put back, if it has no value."""
    try:
        key, end = yield from read_until(scanner, (END_KEY, VALUE, END_TOOL_CALL), MAX_NAME_CHARS)
    except NotACall:
        end = END_TOOL_CALL
    except EndOfAnswer:
        if _WORDS.search(scanner.held_text()) is not None:  # it is text, not the beginning of a key
            scanner.emit_text(scanner.held_text())
        raise
    if end == END_TOOL_CALL:
        scanner.unread_held()
        return False
    if end == END_KEY:
        yield from read_token(scanner, (VALUE,))
    yield from read_argument(scanner, arguments, key.strip(), schemas, name, ends=VALUE_ENDS)
    return True


_NOTATION = CallNotation(
    begin=TOOL_CALL,
    before_name="",
    after_name="",
    after_arguments=f"{SPACES}{END_TOOL_CALL}",
    separator=f"{SPACES}{TOOL_CALL}",
    argument_tags=ArgumentTags(
        before_key=f"{SPACES}{KEY}",
        after_key=f"{END_KEY}{SPACES}{VALUE}",
        end=END_VALUE,
        closing=(END_TOOL_CALL,),
    ),
)
GLM = ToolFormat(
    name="glm",
    make_parser=_make_parser,
    notation=_NOTATION,
    auto_notations=(_NOTATION,),
    first_call_starts=(rf"{NAMES}\n\{{",),
    has_special_markers=True,
)

"""PYTHONIC: calls written as a list of Python calls, [f(a=1, b="x"), g()].

Llama 3.2 and Llama 4 write the list at the beginning of the answer. Others mark it: <|python_start|> (Llama 4),
<|tool_call_start|> (LFM2), <function_calls> (Olmo 3). After a marker the calls may also stand on lines, in a fence
(MiniCPM) or not, or be JSON objects. Values are literals, which become JSON; nothing is evaluated.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from chairlift.text.tool_formats.answer_scan_and_marker_readers import (
    read_closing,
    read_past_space,
    read_token,
    read_until,
    scan_answer,
)
from chairlift.text.tool_formats.arguments_writer import ArgumentsWriter
from chairlift.text.tool_formats.base import (
    MAX_NAME_CHARS,
    SPACE,
    CallNotation,
    KeywordArguments,
    ToolFormat,
    ToolSchemas,
)
from chairlift.text.tool_formats.json_calls import read_objects
from chairlift.text.tool_formats.non_json_values import cut_python_json, python_json, read_python_string, read_raw
from chairlift.text.tool_formats.scanner import EndOfAnswer, NotACall, Scan, Scanner, ScanningParser
from chairlift.text.tool_formats.tool_call_parser import ToolCallParser

MARKERS = ("<|python_start|>", "<|tool_call_start|>", "<function_calls>")
FENCE = "```"
CLOSING = (
    FENCE, "<|python_end|>", "<|tool_call_end|>", "</function_calls>", "<|eom|>", "<|eot|>", "<|eom_id|>", "<|eot_id|>",
)  # fmt: skip
REASONING = {"<|thought_start|>": "<|thought_end|>"}
_NAME = re.compile(r"\s*([\w-][\w.:-]*)\s*")
_KEY = re.compile(r"\s*([^\W\d]\w*)\s*")


def _make_parser(schemas: ToolSchemas) -> ToolCallParser:
    return ScanningParser(partial(_scan, schemas=schemas))


def _scan(scanner: Scanner, schemas: ToolSchemas) -> Scan[None]:
    section = partial(_read_section, schemas=schemas)
    yield from scan_answer(scanner, MARKERS, section, bare=("[",), reasoning=REASONING)


def _read_section(scanner: Scanner, marker: str, schemas: ToolSchemas) -> Scan[None]:
    ends: tuple[str, ...] = CLOSING[1:]
    if marker == "[":
        yield from read_python_list(scanner, schemas)
    elif (yield from read_token(scanner, ("{",))):
        yield from read_objects(scanner, "{", CLOSING)
    else:
        if (yield from read_token(scanner, (FENCE,))):
            yield from read_token(scanner, ("python",))
            ends = CLOSING
        yield from read_python_block(scanner, schemas, ends)
    yield from read_closing(scanner, ends)


def read_python_block(scanner: Scanner, schemas: ToolSchemas, ends: Sequence[str]) -> Scan[None]:
    """Read a list of calls, or calls on lines up to one of the ends; calls may be printed, print(f(a=1))."""
    char = yield from read_past_space(scanner)
    if char == "[":
        yield from read_python_list(scanner, schemas)
        yield from read_closing(scanner, ends)
        return
    scanner.unread(char)
    end = ""
    while not end:
        is_printed = bool((yield from read_token(scanner, ("print(",))))
        yield from read_python_call(scanner, schemas)
        yield from read_closing(scanner, (")", ";") if is_printed else (";",))
        end = yield from read_token(scanner, ends)
    scanner.drop_held()


def read_python_list(scanner: Scanner, schemas: ToolSchemas) -> Scan[None]:
    """Read f(a=1), g()] after the opening bracket. Raises NotACall as read_python_call does."""
    separator = ","
    while separator == ",":
        yield from read_python_call(scanner, schemas)
        separator = yield from read_token(scanner, (",", "]"))
    if separator == "]":
        scanner.drop_held()


def read_python_call(scanner: Scanner, schemas: ToolSchemas) -> Scan[None]:
    """Read f(a=1, b="x"). Raises NotACall where no name of a tool and no parenthesis comes."""
    head, _ = yield from read_until(scanner, ("(",), MAX_NAME_CHARS)
    match = _NAME.fullmatch(head.lstrip(SPACE + ","))
    if match is None or (schemas and match[1] not in schemas):
        raise NotACall
    name = match[1]
    scanner.start_call(name)
    arguments, num_positional = ArgumentsWriter(scanner), 0
    end = ","
    while end == ",":
        raw: list[str] = []
        positional = _positional_name(schemas, name, num_positional)
        try:
            end = yield from read_raw(scanner, raw, ",=", read_python_string, CLOSING)
        except EndOfAnswer:
            if _KEY.fullmatch("".join(raw)) is None:
                arguments.add_cut(positional, cut_python_json("".join(raw)))
            raise
        key = _KEY.fullmatch("".join(raw)) if end == "=" else None
        if key is not None:
            raw = []
        elif end == "=":  # the equals sign belongs to the value
            raw.append(end)
        elif not "".join(raw).strip():
            continue
        if end == "=":
            try:
                end = yield from read_raw(scanner, raw, ",", read_python_string, CLOSING)
            except EndOfAnswer:
                arguments.add_cut(key[1] if key is not None else positional, cut_python_json("".join(raw)))
                raise
        arguments.add(key[1] if key is not None else positional, python_json("".join(raw)))
        num_positional += key is None
    arguments.end()


def _positional_name(schemas: ToolSchemas, name: str, index: int) -> str:
    """Return the name of an argument without one: that of the tool's parameter at this position."""
    properties = schemas.get(name, {}).get("properties")
    names = list(properties) if isinstance(properties, Mapping) else []
    return names[index] if index < len(names) else f"argument_{index}"


_LIST = CallNotation(
    begin="[",
    before_name="",
    after_name="(",
    after_arguments=")",
    separator=", ",
    end="]",
    keyword_arguments=KeywordArguments(after_key="=", separator=", "),
)


def _pythonic(notation: CallNotation) -> ToolFormat:
    return ToolFormat(
        name="pythonic", make_parser=_make_parser, notation=notation, arguments_key="parameters",
        has_special_markers=True,
    )  # fmt: skip


PYTHONIC = _pythonic(_LIST)
PYTHONIC_MARKED = {
    "<|python_start|>": _pythonic(replace(_LIST, begin="<|python_start|>[", end="]<|python_end|>")),
    "<|tool_call_start|>": _pythonic(replace(_LIST, begin="<|tool_call_start|>[", end="]<|tool_call_end|>")),
    "<function_calls>": _pythonic(replace(_LIST, begin="<function_calls>", separator="\n", end="</function_calls>")),
}
"""The marker of a model's calls -> the format with the notation that has it; the parser reads all of them."""

"""Helpers for the parsers of tool calls: read an answer in parts, and merge its pieces."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from chairlift.text.tool_formats.base import ToolFormat, ToolSchemas
from chairlift.text.tool_formats.detect import TOOL_FORMATS
from chairlift.text.tool_formats.tool_call_parser import (
    Piece,
    ReasoningText,
    TextDelta,
    ToolCallArguments,
    ToolCallParser,
    ToolCallStart,
)

SCHEMAS: dict[str, dict[str, Any]] = {
    "f": {"type": "object", "properties": {"x": {"type": "integer"}, "s": {"type": "string"}}},
    "g": {"type": "object", "properties": {"y": {"type": "string"}, "z": {"type": "array"}}},
}


class Merged(NamedTuple):
    """The text of an answer, name and arguments of each call, and the reasoning."""

    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    reasoning: str = ""


def push_all(parser: ToolCallParser, *deltas: str) -> list[Piece]:
    """Return the pieces of a whole answer."""
    return [*(piece for delta in deltas for piece in parser.push(delta)), *parser.flush()]


def merged(pieces: list[Piece]) -> Merged:
    """Merge pieces as a client does, and check that calls come one after the other."""
    text, reasoning = "", ""
    calls: list[tuple[str, str]] = []
    for piece in pieces:
        match piece:
            case TextDelta(delta):
                assert delta
                text += delta
            case ReasoningText(delta):
                assert delta
                reasoning += delta
            case ToolCallStart(index, name):
                assert index == len(calls) and name
                calls.append((name, ""))
            case ToolCallArguments(index, delta):
                assert delta and index == len(calls) - 1
                calls[-1] = (calls[-1][0], calls[-1][1] + delta)
    return Merged(text, tuple(calls), reasoning)


def read(tool_format: ToolFormat, *deltas: str, schemas: ToolSchemas | None = None) -> Merged:
    """Read an answer in these parts."""
    return merged(push_all(tool_format.make_parser(SCHEMAS if schemas is None else schemas), *deltas))


def check_every_split(
    tool_format: ToolFormat, answer: str, expected: Merged, *, schemas: ToolSchemas | None = None
) -> None:
    """Check that an answer is read as expected in one part, in two parts at any place, and by character."""
    for parts in ((answer,), tuple(answer), *halves(answer)):
        assert read(tool_format, *parts, schemas=schemas) == expected, parts


def halves(answer: str) -> Iterator[tuple[str, str]]:
    """Yield every division of an answer into two parts."""
    for at in range(len(answer) + 1):
        yield answer[:at], answer[at:]


FORMATS = tuple(TOOL_FORMATS.values())

X, Y = '{"x": 1}', '{"y": "a}b\\"{,[]()\\\\ é 🚡", "z": [1, {"k": null}, []]}'
"""Arguments of f and g; the string holds the syntax of calls."""

NO_CALLS = ("g", "{}")


def _object(name: str, arguments: str, key: str = "arguments", name_key: str = "name") -> str:
    return f'{{"{name_key}": "{name}", "{key}": {arguments}}}'


F, G = _object("f", X), _object("g", Y)
FP, GP = _object("f", X, "parameters"), _object("g", Y, "parameters")
FT, GT = _object("f", X, "parameters", "tool_name"), _object("g", Y, "parameters", "tool_name")
BOTH = (("f", X), ("g", Y))
STRING = 'a}b"{,[]()\\ é 🚡'

ANSWERS_OF_FORMATS: dict[str, tuple[tuple[str, tuple[tuple[str, str], ...]], ...]] = {
    "hermes": ((f"<tool_call>\n{F}\n</tool_call>\n<tool_call>\n{G}\n</tool_call>", BOTH),),
    "qwen3-coder": ((
        "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n"
        f'<function=g>\n<parameter=y>\n{STRING}\n</parameter>\n<parameter=z>\n[1, {{"k": null}}, []]\n'
        "</parameter>\n</function>\n</tool_call>", BOTH,
    ),),
    "minimax": ((
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="x">1</parameter>\n</invoke>\n<invoke name="g">\n'
        f'<parameter name="y">{STRING}</parameter>\n<parameter name="z">[1, {{"k": null}}, []]</parameter>\n</invoke>\n'
        "</minimax:tool_call>", BOTH,
    ),),
    "deepseek-v3.2": ((
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="x" string="false">1'
        '</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name="g">\n<｜DSML｜parameter name="y" string="true">'
        f'{STRING}</｜DSML｜parameter>\n<｜DSML｜parameter name="z" string="false">[1, {{"k": null}}, []]'
        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>", BOTH,
    ),),
    "json-tags": (
        (f"<tool_calls>[{F}, {G}]</tool_calls>", BOTH), (f"<TOOLCALL>[{F}, {G}]</TOOLCALL>", BOTH),
        (f"<function_call> {F}\n<function_call> {G}", BOTH),
        (f"<|action_start|><|plugin|>{FP}<|action_end|>", BOTH[:1]),
    ),
    "llama3": ((f"{FP}; {GP}", BOTH), (f"<|python_tag|>{FP}; {GP}<|eom_id|>", BOTH),
               (f"```json\n[{F}, {G}]\n```", BOTH)),
    "pythonic": (
        ("""[f(x=1), g(y='a}b"{,[]()\\\\ é 🚡', z=[1, {"k": None}, []])]""", BOTH),
        ("<|python_start|>[f(x=1), g()]<|python_end|>", (("f", X), NO_CALLS)),
        ("<|tool_call_start|>[f(x=1), g()]<|tool_call_end|>", (("f", X), NO_CALLS)),
        ("<|tool_call_start|>\n```python\nf(x=1)\ng()\n```\n<|tool_call_end|>", (("f", X), NO_CALLS)),
        ("<function_calls>f(x=1)\ng()</function_calls>", (("f", X), NO_CALLS)),
    ),
    "mistral": (
        (f"[TOOL_CALLS][{F}, {G}]", BOTH), (f"[TOOL_CALLS]f[ARGS]{X}[TOOL_CALLS]g[CALL_ID]aB3[ARGS]{Y}", BOTH),
    ),
    "deepseek": (
        (f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{X}\n```<｜tool▁call▁end｜>\n"
         f"<｜tool▁call▁begin｜>function"
         f"<｜tool▁sep｜>g\n```json\n{Y}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>", BOTH),
        (f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{X}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>"
         f"{Y}<｜tool▁call▁end｜><｜tool▁calls▁end｜>", BOTH),
    ),
    "kimi": ((
        f"<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{X}<|tool_call_end|>"
        f"<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{Y}<|tool_call_end|><|tool_calls_section_end|>",
        BOTH,
    ),),
    "glm": ((
        "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>\n<tool_call>g\n<arg_key>y</arg_key>\n"
        f'<arg_value>{STRING}</arg_value>\n<arg_key>z</arg_key>\n<arg_value>[1, {{"k": null}}, []]</arg_value>\n'
        "</tool_call>",
        BOTH,
    ), (f"f\n{X}", (("f", X),))),
    "harmony": ((
        f"<|channel|>commentary to=functions.f <|constrain|>json<|message|>{X}<|call|><|start|>assistant<|channel|>"
        f"commentary to=functions.g <|constrain|>json<|message|>{Y}<|call|>", BOTH,
    ),),
    "gemma": ((
        "<start_function_call>call:f{x:1}<end_function_call><start_function_call>call:g{y:<escape>"
        f"{STRING}<escape>,z:[1,{{k:null}},[]]}}<end_function_call>", BOTH,
    ),),
    "gemma4": ((
        f'<|tool_call>call:f{{x:1}}<tool_call|><|tool_call>call:g{{y:<|"|>{STRING}<|"|>,z:[1,{{k:null}},[]]}}<tool_call|>',
        BOTH,
    ),),
    "tool-code": (("```tool_code\nf(x=1)\ng()\n```", (("f", X), NO_CALLS)),),
    "phi4": ((f"<|tool_call|>[{F}, {G}]<|/tool_call|>", BOTH),),
    "phi4-functools": ((f"functools[{F}, {G}]", BOTH),),
    "granite": ((f"<|tool_call|>[{F}, {G}]", BOTH), (f"<tool_call>[{F}, {G}]", BOTH)),
    "command-r": ((f"Action: ```json\n[{FT}, {GT}]\n```", BOTH),),
    "command-a": ((f"<|START_ACTION|>[{FT}, {GT}]<|END_ACTION|>", BOTH),),
    "generic": ((f'{{"tool_calls": [{F}, {G}]}}', BOTH),),
}  # fmt: skip
"""Format -> answers that only call, with the calls."""

SYNTAX = {
    name: sorted({part for answer, _ in answers for part in re.split(r"(?<=[>\]}])|(?=[<\[{(])", answer) if part})
    for name, answers in ANSWERS_OF_FORMATS.items()
}
"""Format -> parts of its answers, from which random answers are built."""

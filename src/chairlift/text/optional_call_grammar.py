"""optional_call_grammar: the grammar of an answer that may call tools: text, and enforced calls behind their marker.

Where a format begins its calls with a marker, the text before it is free, except that it has none of the texts that
begin a call for the format's parser: an answer has no call that the grammar does not enforce. A marker that is a token
of the vocabulary stands in the grammar as this token, and the text cannot spell it either.
A bare call (Llama 3) begins the answer with a brace, and text begins with anything else.
GPT-OSS writes messages: those with a function as their recipient are enforced calls.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from chairlift.core.lark_grammar_terms import ANY, lark_regex, text_up_to, text_without
from chairlift.core.structured_output import ReasoningPrefix
from chairlift.text.call_grammar_rules import (
    MARKER,
    arguments_rules,
    call_rule,
    lark_json,
    lark_marked,
    notation_regex,
    repeated,
    terminals,
)
from chairlift.text.reasoning_formats import REASONING_FORMATS
from chairlift.text.tagged_argument_grammar import tagged_arguments_rules
from chairlift.text.tool_formats.base import NAMES, NUMBER, SPACES, CallNotation, ToolFormat, ToolSchemas
from chairlift.text.tool_formats.harmony import CHANNEL, END, ENDS, MESSAGE, START


def optional_call_grammar(
    tool_format: ToolFormat,
    schemas: Mapping[str, Any],
    *,
    several: bool,
    answer: Mapping[str, Any] | None = None,
    parsed: ToolSchemas | None = None,
) -> str:
    """Return a Lark grammar of calls in the format's auto_notations after any text, or of text without a call.

    With `answer`, a JSON Schema, it is a grammar of calls, or of an answer of this schema. The parser of the answer has
    the schemas `parsed`, or `schemas` if it is None.

    Raises:
        NoTaggedArgumentsError: the format tags single arguments, and cannot express the schema of one.
    """
    notations, ids = tool_format.auto_notations, tool_format.token_ids
    assert notations, "the format has one"
    rules = [call_rule(f"call_{index}", each, schemas, ids) for index, each in enumerate(notations)]
    if (tags := notations[0].argument_tags) is not None:
        rules += tagged_arguments_rules(tags, schemas, schemas if parsed is None else parsed, ids)
    else:
        rules += arguments_rules(schemas)
    if answer is not None:
        assert tool_format.may_answer_json, "the parser tells calls from an answer"
        rules.append(f"answer: {lark_json(answer)}")
    if optional_reasoning_prefix(tool_format) is not None:
        return "\n".join(terminals([*_message_rules(tool_format, has_answer=answer is not None), *rules]))
    calls = [_calls_of(index, each, ids, several) for index, each in enumerate(notations)]
    if answer is not None:
        begun = [f"{lark_marked(each.begin, ids)} {rest}" for each, rest in zip(notations, calls, strict=True)]
        return "\n".join(terminals([f"start: {' | '.join(begun)} | answer", *rules]))
    return "\n".join(terminals([*_text_rules(tool_format, calls, schemas), *rules]))


def optional_reasoning_prefix(tool_format: ToolFormat) -> ReasoningPrefix | None:
    """Return what stands before calls or text in a format that marks reasoning itself; None for the others."""
    return next((each.reasoning for each in tool_format.auto_notations if each.reasoning is not None), None)


def _calls_of(index: int, notation: CallNotation, ids: Mapping[str, int], several: bool) -> str:
    return f"{repeated(f'call_{index}', notation.separator, ids, several)} {lark_marked(notation.end, ids)}"


def _text_rules(tool_format: ToolFormat, calls: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return the rules of text, and of calls after it."""
    notations, ids = tool_format.auto_notations, tool_format.token_ids
    texts = [text for each in notations for text in (each.begin, each.before_name, *each.other_before_names)]
    words = [*(marker_of(each) for each in notations if not each.is_bare), *(
        marker for text in texts for marker in MARKER.findall(text)
    )]  # fmt: skip
    starts = "|".join((*map(notation_regex, dict.fromkeys(words)), *map(_escaped, tool_format.call_starts)))
    any_name = f"({'|'.join(map(lark_regex, names))})"
    firsts = [_escaped(each).replace(NAMES, any_name) for each in tool_format.first_call_starts]
    if firsts and tool_format.follows_reasoning:
        # Reasoning is not text: a bare call may follow it.
        firsts += [notation_regex(start) for each in REASONING_FORMATS.values() for start in each.starts]
    no_first = f" & ~/[ \\n\\r\\t]*({'|'.join(dict.fromkeys(firsts))}){ANY}/" if firsts else ""
    lines = [f"TEXT: {text_without(starts)}{no_first}"]
    before = ""
    if others := [f"<[{ids[marker]}]>" for marker in tool_format.other_markers if marker in ids]:
        lines.append(f"text: (TEXT? ({' | '.join(others)}))+")
        before = "text? "
    answers = [f"{before}TEXT?"]
    for index, (notation, rest) in enumerate(zip(notations, calls, strict=True)):
        marker = marker_of(notation)
        after = lark_marked(notation.begin.removeprefix(marker), ids)
        if notation.is_bare:
            lines.append(f"CALL_START_{index}: /{notation_regex(notation.begin)}/")
            answers.append(f"CALL_START_{index} {rest}")
        elif marker in ids:
            answers.append(f"{before}TEXT? <[{ids[marker]}]> {after} {rest}")
        else:
            lines.append(f"TEXT_AND_MARKER_{index}: {text_up_to(notation_regex(marker), starts)}{no_first}")
            answers.append(f"{before}TEXT_AND_MARKER_{index} {after} {rest}")
    return [f"start: {' | '.join(answers)}", *lines]


def marker_of(notation: CallNotation) -> str:
    """Return the text that a call begins with: a marker, or other text up to white space of any length."""
    match = MARKER.match(notation.begin)
    return match[0] if match is not None else notation.begin.partition(SPACES)[0].partition(NUMBER)[0]


def _escaped(pattern: str) -> str:
    return pattern.replace("/", r"\/")


def _message_rules(tool_format: ToolFormat, *, has_answer: bool) -> list[str]:
    """Return the rules of GPT-OSS's messages: any number of notes, and then a call, text, or the answer."""
    ids = tool_format.token_ids
    every = "|".join(map(lark_regex, (*ENDS, START, CHANNEL)))
    lines = [f"TEXT: {text_without(every)}", "NOTE: /analysis|commentary/"]
    ended = f"TEXT? <[{ids[END]}]>" if END in ids else "TEXT_AND_END"
    if END not in ids:
        lines.append(f"TEXT_AND_END: {text_up_to(lark_regex(END), every)}")
    channel, message = lark_marked(CHANNEL, ids), lark_marked(MESSAGE, ids)
    lines.append(f'note: {channel} NOTE {message} {ended} {lark_marked(START, ids)} "assistant"')
    calls = " | ".join(f"call_{index}" for index in range(len(tool_format.auto_notations)))
    final = f'{channel} "final" {message}'
    rest = f"{final} answer" if has_answer else f"{final} TEXT? | {channel} NOTE {message} TEXT?"
    return [f"start: note* ({calls} | {rest})", *lines]

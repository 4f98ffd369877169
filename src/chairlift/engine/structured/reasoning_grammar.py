"""add_reasoning_prefix: extends a grammar by the reasoning that the model may write before the structured output.

The reasoning is a part of the grammar, so masks, copies, resumed tokens and preemption need nothing else. It is text
without special tokens, and without its own end: the first end of the reasoning starts the structured part.
"""

import json
import re
from collections.abc import Iterable, Mapping

from chairlift.core.structured_output import ReasoningPrefix

ANSWER = "answer"
MAX_NEWLINES = 20
"""Line breaks between the reasoning and the structured part; bounded, so that every output ends."""

META = re.compile(r"[\\.+*?()|\[\]{}^$#&~-]")
"""Characters that a regular expression needs a backslash before to match them literally."""


def add_reasoning_prefix(source: str, prefix: ReasoningPrefix, special_ids: Mapping[str, int]) -> str:
    """Return llguidance source of the prefix and then the grammar in `source`.

    `special_ids` maps the names of the tokenizer's special tokens to their ids.
    """
    try:
        grammars = json.loads(source)["grammars"]
    except ValueError:
        grammars = [{"lark_grammar": source}]
    grammars[0]["name"] = ANSWER
    return json.dumps({"grammars": [{"lark_grammar": _prefix_grammar(prefix, special_ids)}, *grammars]})


def escape_regex(text: str) -> str:
    """Return a regular expression that matches exactly this text."""
    return META.sub(r"\\\g<0>", text)


def _prefix_grammar(prefix: ReasoningPrefix, special_ids: Mapping[str, int]) -> str:
    """Return a Lark grammar that refers to the structured part as @answer."""
    ends = [_split_special(end, special_ids) for end in prefix.ends]
    # The reasoning must not spell its end in ordinary text either: a reader of the text could not tell them apart.
    no_end = "".join(f" & ~/(?s:.*){_lark_regex(end[0])}(?s:.*)/" for end in ends)
    lines = [f"TEXT: /(?s:.*)/{no_end}"]
    endings = [f"TEXT? {_sequence(end, special_ids)}" for end in ends if end[0] in special_ids]
    if words := [_lark_regex(end[0]) for end in ends if end[0] not in special_ids]:
        no_longer = "".join(f" & ~/(?s:.*){word}(?s:.+)/" for word in words)
        lines.append(f"TEXT_AND_END: /(?s:.*)({'|'.join(words)})/{no_longer}")
        endings.append("TEXT_AND_END")
    lines.append(f"ended: {' | '.join(endings)}")
    starts = [_sequence(_split_special(start, special_ids), special_ids) for start in prefix.starts]
    reasoning = "ended" if prefix.is_open else f"({' | '.join(starts)}) ended"
    if prefix.answer_start:
        after = _sequence(_split_special(prefix.answer_start, special_ids), special_ids)
        lines.append(f"start: {reasoning if prefix.is_open else f'({reasoning})?'} {after} @{ANSWER}")
    else:
        lines.append(f"NEWLINES: /[\\r\\n]{{1,{MAX_NEWLINES}}}/")
        direct = "" if prefix.is_open else f" | @{ANSWER}"
        lines.append(f"start: {reasoning} NEWLINES? @{ANSWER}{direct}")
    return "\n".join(lines)


def _split_special(text: str, special_ids: Mapping[str, int]) -> list[str]:
    """Split a text into special tokens and the text between them."""
    names = "|".join(re.escape(name) for name in sorted(special_ids, key=len, reverse=True) if name in text)
    return [part for part in re.split(f"({names})", text) if part] if names else [text]


def _sequence(parts: Iterable[str], special_ids: Mapping[str, int]) -> str:
    """Return special tokens and text as a sequence of a Lark rule."""
    return " ".join(f"<[{special_ids[part]}]>" if part in special_ids else json.dumps(part) for part in parts)


def _lark_regex(text: str) -> str:
    """Return a regular expression of a Lark grammar that matches exactly this text."""
    return escape_regex(text).replace("/", r"\/").replace("\n", r"\n")

"""add_reasoning_prefix: extends a grammar by the reasoning that the model may write before the structured output.

The reasoning is a part of the grammar, so masks, copies, resumed tokens and preemption need nothing else. It is text
without special tokens, and without its own end: the first end of the reasoning starts the structured part.
"""

import json
from collections.abc import Mapping

from chairlift.core.lark_grammar import lark_regex, lark_sequence, split_special, text_up_to, text_without
from chairlift.core.structured_output import ReasoningPrefix

ANSWER = "answer"
MAX_NEWLINES = 20
"""Line breaks between the reasoning and the structured part; bounded, so that every output ends."""


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


def _prefix_grammar(prefix: ReasoningPrefix, special_ids: Mapping[str, int]) -> str:
    """Return a Lark grammar that refers to the structured part as @answer."""
    ends = {end: split_special(end, special_ids)[0] for end in prefix.ends}  # each with its first part
    # The reasoning must not spell its end in ordinary text either: a reader of the text could not tell them apart.
    excluded = "|".join(dict.fromkeys(map(lark_regex, (*ends.values(), *prefix.excluded))))
    lines = [f"TEXT: {text_without(excluded)}"]
    endings = [f"TEXT? {lark_sequence(end, special_ids)}" for end, first in ends.items() if first in special_ids]
    if words := [lark_regex(first) for first in ends.values() if first not in special_ids]:
        lines.append(f"TEXT_AND_END: {text_up_to('|'.join(words), excluded)}")
        endings.append("TEXT_AND_END")
    lines.append(f"ended: {' | '.join(endings)}")
    starts = [lark_sequence(start, special_ids) for start in prefix.starts]
    reasoning = "ended" if prefix.is_open else f"({' | '.join(starts)}) ended"
    if prefix.answer_start:
        after = lark_sequence(prefix.answer_start, special_ids)
        lines.append(f"start: {reasoning if prefix.is_open else f'({reasoning})?'} {after} @{ANSWER}")
    else:
        lines.append(f"NEWLINES: /[\\r\\n]{{1,{MAX_NEWLINES}}}/")
        direct = "" if prefix.is_open else f" | @{ANSWER}"
        lines.append(f"start: {reasoning} NEWLINES? @{ANSWER}{direct}")
    return "\n".join(lines)

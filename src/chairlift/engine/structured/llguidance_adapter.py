"""llguidance source: converts a StructuredOutput for llguidance, and sets the limits of compiling and following it."""

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from chairlift.core.lark_grammar_terms import (
    WHITESPACE,
    escape_regex,
    lark_regex,
    lark_sequence,
    split_special,
    text_up_to,
    text_without,
)
from chairlift.core.structured_output import ReasoningPrefix, StructuredOutput
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer
from chairlift.engine.structured.json_schema.closed_objects import close_objects
from chairlift.engine.structured.json_schema.lowering import lower

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

JSON_OPTIONS: "JsonCompileOptions" = {"whitespace_pattern": WHITESPACE, "lenient": False, "coerce_one_of": False}
"""Unsupported keywords are rejected, not ignored. A oneOf with overlapping parts is rejected, too."""

LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 1_000_000, "step_lexer_fuel": 200_000, "step_max_items": 50_000, "max_items_in_row": 10_000,
    "max_lexer_states": 50_000, "max_grammar_size": 500_000, "verbose_errors": False,
}  # fmt: skip
"""LLParserLimits: bounds of one grammar's compilation, of one step, and of memory (a lexer state takes 1-2 kB)."""

PRIVATE_USE = "\U0010fffd"

LARK_PART = re.compile(r'"(?:[^"\\]|\\.)*"|/(?:[^/\\\n]|\\.)+/|//[^\n]*|#[^\n]*|(?P<token><[^<>\[\]\s"]+>)', re.DOTALL)
"""A string, a regular expression, a comment or the name of a special token in a Lark grammar."""


def source_of(structured: StructuredOutput, special_ids: Mapping[str, int] | None = None) -> str:
    """Return a structured output as llguidance source. Raises ValueError for an invalid grammar.

    `special_ids` maps the names of the tokenizer's special tokens to their ids: a Lark grammar may use `<name>`.
    """
    source = _answer_source(structured, special_ids or {})
    if structured.reasoning_prefix is None:
        return source
    return add_reasoning_prefix(source, structured.reasoning_prefix, special_ids or {})


def _answer_source(structured: StructuredOutput, special_ids: Mapping[str, int]) -> str:
    """Return the source of the structured part."""
    from llguidance import LLMatcher, grammar_from

    match structured.kind:
        case "json_schema":
            schema, _ = lower(close_objects(structured.schema), strict=True)
            return LLMatcher.grammar_from_json_schema({} if schema is True else schema, overrides=JSON_OPTIONS)
        case "json_object":
            return LLMatcher.grammar_from_json_schema({"type": "object"}, overrides=JSON_OPTIONS)
        case "regex":
            return LLMatcher.grammar_from_regex(str(structured.regex))
        case "grammar":
            return use_token_ids(grammar_from("grammar", str(structured.grammar)), special_ids)
        case _:
            # One regular expression: as alternatives of a grammar, each of thousands would be a parser item.
            return LLMatcher.grammar_from_regex("|".join(escape_regex(text) for text in structured.choice))


def make_tokenizer(vocabulary: GrammarTokenizer, vocab_size: int) -> "LLTokenizer":
    """Build llguidance's tokenizer, which takes about a second for 150,000 tokens. Raises ValueError."""
    from llguidance import LLTokenizer

    text, eos = rename_special_tokens(vocabulary.tokenizer_json), list(vocabulary.eos_token_ids) or None
    try:
        return LLTokenizer(text, n_vocab=vocab_size, eos_token=eos)
    except Exception:  # the model has fewer rows than the file has tokens: the others are never sampled
        return LLTokenizer(text, eos_token=eos)


def special_token_ids(tokenizer_json: bytes) -> dict[str, int]:
    """Return name -> id of the tokens that llguidance takes as special: flagged, or like <tool_call>."""
    added = json.loads(tokenizer_json).get("added_tokens") or ()
    return {token["content"]: token["id"] for token in added if _is_special(token)}


def rename_special_tokens(tokenizer_json: bytes) -> str:
    """Give each special token a name that no text contains.

    llguidance encodes the text that a grammar forces, but it matches a special token by its id alone. Forced text with
    the name in it would be encoded as that token, which the grammar then rejects. With another name for the token, the
    text is encoded as ordinary tokens.
    """
    tokenizer = json.loads(tokenizer_json)
    names: dict[str, str] = {}
    for token in tokenizer.get("added_tokens") or ():
        if _is_special(token):
            names[token["content"]] = token["content"] = f"<|{PRIVATE_USE}{token['id']}{PRIVATE_USE}|>"
    model = tokenizer["model"]
    vocabulary = model["vocab"]  # token -> id, or [token, score] by id
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(token, token): token_id for token, token_id in vocabulary.items()}
    else:
        model["vocab"] = [[names.get(token, token), score] for token, score in vocabulary]
    # A merge with a renamed token would refer to a name that the vocabulary does not have any more.
    if model.get("merges"):
        prefix = len(model.get("continuing_subword_prefix") or "")
        model["merges"] = [merge for merge in model["merges"] if names.keys().isdisjoint(_merged(merge, prefix))]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    return json.dumps(tokenizer)


def _merged(merge: str | list[str], num_prefix_chars: int) -> tuple[str, str, str]:
    """Return the two tokens of a merge of BPE, and the token that they become."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right, left + right[num_prefix_chars:]


def _is_special(token: Mapping[str, Any]) -> bool:
    return bool(token.get("special")) or (token["content"].startswith("<") and token["content"].endswith(">"))


def use_token_ids(grammar: str, ids: Mapping[str, int]) -> str:
    """Replace the names of special tokens in a Lark grammar by <[ID]>, outside of strings, expressions and comments."""
    return LARK_PART.sub(lambda part: f"<[{ids[part[0]]}]>" if part["token"] and part[0] in ids else part[0], grammar)


def make_matcher(source: str, tokenizer: "LLTokenizer") -> "LLMatcher":
    """Compile a grammar within LIMITS. The matcher's is_error() tells whether that failed."""
    from llguidance import LLMatcher, LLParserLimits

    return LLMatcher(tokenizer, source, log_level=0, limits=LLParserLimits(**LIMITS))


ANSWER = "answer"
MAX_NEWLINES = 20
"""Line breaks between the reasoning and the structured part; bounded, so that every output ends."""


def add_reasoning_prefix(source: str, prefix: ReasoningPrefix, special_ids: Mapping[str, int]) -> str:
    """Return llguidance source of the reasoning that the model may write first, and then the grammar in `source`.

    The reasoning is a part of the grammar, so masks, copies, resumed tokens and preemption need nothing else. It is
    text without special tokens, and without its own end: the first end of the reasoning starts the structured part.

    `special_ids` maps the names of the tokenizer's special tokens to their ids.
    """
    try:
        grammars = json.loads(source)["grammars"]
    except ValueError:
        grammars = [{"lark_grammar": source}]
    # The prefix refers to the structured part by this name, and is the first grammar, where llguidance starts.
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

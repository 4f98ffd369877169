"""llguidance source: converts a StructuredOutput for llguidance, and sets the limits of compiling and following it."""

import re
from typing import TYPE_CHECKING, Any

from chairlift.core.structured_output import StructuredOutput
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

WHITESPACE = r"[ \n\r\t]{0,40}"
"""White space between the parts of a JSON text: enough for indentation, but bounded, so that every output ends."""

JSON_OPTIONS: "JsonCompileOptions" = {"whitespace_pattern": WHITESPACE, "lenient": False, "coerce_one_of": False}
"""Unsupported keywords are rejected, not ignored. A oneOf with overlapping parts is rejected, too."""

LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 1_000_000, "step_lexer_fuel": 200_000, "step_max_items": 50_000, "max_items_in_row": 2_000,
    "max_lexer_states": 50_000, "max_grammar_size": 500_000, "verbose_errors": False,
}  # fmt: skip
"""LLParserLimits: bounds of one grammar's compilation, of one step, and of memory (a lexer state takes 1-2 kB)."""

META = re.compile(r"[\\.+*?()|\[\]{}^$#&~-]")
"""Characters that a regular expression needs a backslash before to match them literally."""


def source_of(structured: StructuredOutput) -> str:
    """Return a structured output as llguidance source. Raises ValueError for an invalid grammar."""
    from llguidance import LLMatcher, grammar_from

    match structured.kind:
        case "json_schema":
            if structured.json_schema == "false":
                raise ValueError("no output matches the schema false")
            schema = "{}" if structured.json_schema == "true" else str(structured.json_schema)
            return LLMatcher.grammar_from_json_schema(schema, overrides=JSON_OPTIONS)
        case "json_object":
            return LLMatcher.grammar_from_json_schema({"type": "object"}, overrides=JSON_OPTIONS)
        case "regex":
            return LLMatcher.grammar_from_regex(str(structured.regex))
        case "grammar":
            return grammar_from("grammar", str(structured.grammar))
        case _:
            # One regular expression: as alternatives of a grammar, each of thousands would be a parser item.
            return LLMatcher.grammar_from_regex("|".join(META.sub(r"\\\g<0>", text) for text in structured.choice))


def make_tokenizer(vocabulary: GrammarTokenizer, vocab_size: int) -> "LLTokenizer":
    """Build llguidance's tokenizer, which takes about a second for 150,000 tokens. Raises ValueError."""
    from llguidance import LLTokenizer

    text, eos = vocabulary.tokenizer_json.decode(), list(vocabulary.eos_token_ids) or None
    try:
        return LLTokenizer(text, n_vocab=vocab_size, eos_token=eos)
    except Exception:  # the model has fewer rows than the file has tokens: the others are never sampled
        return LLTokenizer(text, eos_token=eos)


def make_matcher(source: str, tokenizer: "LLTokenizer") -> "LLMatcher":
    """Compile a grammar within LIMITS. The matcher's is_error() tells whether that failed."""
    from llguidance import LLMatcher, LLParserLimits

    return LLMatcher(tokenizer, source, log_level=0, limits=LLParserLimits(**LIMITS))

"""StructuredOutput to llguidance's notation, and the limits under which that is compiled and followed."""

import re
from typing import TYPE_CHECKING, Any

from chairlift.core.structured_output import StructuredOutput
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

WHITESPACE = r"[ \n\r\t]{0,40}"
"""Between the parts of a JSON text: enough for indentation, and not without end."""

JSON_OPTIONS: "JsonCompileOptions" = {"whitespace_pattern": WHITESPACE, "lenient": False, "coerce_one_of": False}
"""A keyword that cannot be kept is refused, not ignored; and so is a oneOf whose parts overlap."""

LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 1_000_000, "step_lexer_fuel": 200_000, "step_max_items": 50_000, "max_items_in_row": 2_000,
    "max_lexer_states": 50_000, "max_grammar_size": 500_000, "verbose_errors": False,
}  # fmt: skip
"""LLParserLimits: what one grammar may cost when it is compiled, in one step, and in memory (1-2 kB a state)."""


META = re.compile(r"[\\.+*?()|\[\]{}^$#&~-]")
"""What has a meaning in a regular expression, and none behind a backslash."""


def source_of(structured: StructuredOutput) -> str:
    """Return llguidance's own form. Raises ValueError for a grammar that cannot be read."""
    from llguidance import LLMatcher, grammar_from

    match structured.kind:
        case "json_schema":
            if structured.json_schema == "false":
                raise ValueError("no output follows the schema false")
            schema = "{}" if structured.json_schema == "true" else str(structured.json_schema)
            return LLMatcher.grammar_from_json_schema(schema, overrides=JSON_OPTIONS)
        case "json_object":
            return LLMatcher.grammar_from_json_schema({"type": "object"}, overrides=JSON_OPTIONS)
        case "regex":
            return LLMatcher.grammar_from_regex(str(structured.regex))
        case "grammar":
            return grammar_from("grammar", str(structured.grammar))
        case _:
            # One expression: as alternatives of a grammar, each of thousands would be an item of the parser's.
            return LLMatcher.grammar_from_regex("|".join(META.sub(r"\\\g<0>", text) for text in structured.choice))


def make_tokenizer(vocabulary: GrammarTokenizer, vocab_size: int) -> "LLTokenizer":
    """Make llguidance's view of a tokenizer; takes about a second for 150,000 tokens. Raises ValueError."""
    from llguidance import LLTokenizer

    text, eos = vocabulary.tokenizer_json.decode(), list(vocabulary.eos_token_ids) or None
    try:
        return LLTokenizer(text, n_vocab=vocab_size, eos_token=eos)
    except Exception:  # fewer rows in the model than tokens in the file: nobody draws those beyond
        return LLTokenizer(text, eos_token=eos)


def make_matcher(source: str, tokenizer: "LLTokenizer") -> "LLMatcher":
    """Compile a grammar under the limits; whether it failed is in the matcher."""
    from llguidance import LLMatcher, LLParserLimits

    return LLMatcher(tokenizer, source, log_level=0, limits=LLParserLimits(**LIMITS))

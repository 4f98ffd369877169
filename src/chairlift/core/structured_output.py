"""StructuredOutput: the grammar of one request's output; frozen, bounded, validated for form at construction.

Whether a schema, a regular expression or a grammar is valid is decided when it is compiled (engine/structured/), before
the request is queued.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chairlift.core.validation import boolean, invalid_param, string, strings

MAX_STRUCTURED_CHARS = 262_144
"""Most characters of a schema (as JSON), a regular expression, a grammar, or of all choices together."""

MAX_CHOICE_STRINGS = 32_768
MAX_DEPTH = 64
"""Deepest nesting of a schema, and of brackets in regular expressions and grammars: compilers and parsers recurse."""

_KINDS = ("json_schema", "json_object", "regex", "grammar", "choice")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningPrefix:
    """Free text that an output may have before its structured part.

    The output is `start` reasoning `end` `answer_start` structured part. The reasoning may be left out, with its
    `start` and `end`, unless the prompt has opened it. Special tokens are named by their text.

    Attributes:
        starts: spellings of the text before the reasoning; unused if `is_open`.
        ends: spellings of the text after it.
        is_open: whether the prompt ends within the reasoning.
        answer_start: text before the structured part.
        excluded: texts that the reasoning does not contain, because they begin or end another message.
    """

    starts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    is_open: bool = False
    answer_start: str = ""
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutput:
    """One of five kinds of structured output, as plain text that hashes and can be serialized.

    Attributes:
        json_schema: a JSON Schema: an object, true or false, or one of these as JSON text; kept as JSON text.
        json_object: any JSON object.
        regex: a regular expression that the whole output matches (no lookaround, no backreferences).
        grammar: a context-free grammar, in Lark's notation or in EBNF (GBNF, as llama.cpp writes it).
        choice: strings; the output is one of them.
        reasoning_prefix: what the output may have before its structured part; chat requests to a reasoning model get
            it from its ReasoningFormat.

    Raises:
        InvalidRequest: none or several of these are set, or one is too large, too deep or of the wrong type.
    """

    json_schema: str | Mapping[str, Any] | bool | None = None
    json_object: bool = False
    regex: str | None = None
    grammar: str | None = None
    choice: tuple[str, ...] = ()
    reasoning_prefix: ReasoningPrefix | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        put = object.__setattr__
        boolean("structured.json_object", self.json_object)
        if self.json_schema is not None:
            put(self, "json_schema", _schema_text(self.json_schema))
        for name in ("regex", "grammar"):
            if (text := getattr(self, name)) is not None:
                put(self, name, string(f"structured.{name}", text, MAX_STRUCTURED_CHARS))
                _check_brackets(f"structured.{name}", text)
        put(self, "choice", strings("structured.choice", self.choice, MAX_CHOICE_STRINGS, MAX_STRUCTURED_CHARS))
        if (total := sum(map(len, self.choice))) > MAX_STRUCTURED_CHARS:
            raise invalid_param("structured.choice", f"has {total} characters, the limit is {MAX_STRUCTURED_CHARS}")
        kinds = [name for name in _KINDS if getattr(self, name) not in (None, False, ())]
        if len(kinds) != 1:
            raise invalid_param(
                "structured", f"needs exactly one of {', '.join(_KINDS)}, got {' and '.join(kinds) or 'none'}"
            )

    @property
    def size(self) -> int:
        """Number of characters of the schema, regex, grammar or choices."""
        texts = (self.json_schema, self.regex, self.grammar, *self.choice)
        return sum(len(text) for text in texts if isinstance(text, str))

    @property
    def schema(self) -> Any:
        """The JSON Schema as plain JSON; None for the other kinds."""
        return None if self.json_schema is None else json.loads(str(self.json_schema))

    @property
    def kind(self) -> str:
        """Name of the field that is set."""
        return next(name for name in _KINDS if getattr(self, name) not in (None, False, ()))


STRUCTURED_FIELDS = _KINDS


def _schema_text(schema: Any) -> str:
    """Return a schema as compact JSON text that is not too long and not too deep."""
    param = "structured.json_schema"
    if isinstance(schema, str):
        if len(schema) > MAX_STRUCTURED_CHARS:
            raise invalid_param(param, f"has {len(schema)} characters, the limit is {MAX_STRUCTURED_CHARS}")
        try:
            schema = json.loads(schema, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise invalid_param(param, f"must be JSON: {str(error)[:200]}") from None
    if not isinstance(schema, Mapping | bool):
        raise invalid_param(param, f"must be an object, true or false, got {type(schema).__name__}")
    if isinstance(schema, Mapping) and "x-guidance" in schema:
        raise invalid_param(param, "must not have x-guidance, which changes how JSON is written")
    _check_depth(param, schema)
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid_param(param, f"must be a value that JSON can represent: {str(error)[:200]}") from None
    if len(text) > MAX_STRUCTURED_CHARS:
        raise invalid_param(param, f"has {len(text)} characters as JSON, the limit is {MAX_STRUCTURED_CHARS}")
    return text


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _check_depth(param: str, value: Any) -> None:
    """Reject nesting beyond MAX_DEPTH, level by level, so that nothing recurses and a cycle ends."""
    level, depth, num_values = [value], 0, 0
    while level:
        num_values += len(level)
        if depth > MAX_DEPTH:
            raise invalid_param(param, f"must not be nested deeper than {MAX_DEPTH} levels")
        if num_values > MAX_STRUCTURED_CHARS:
            raise invalid_param(param, f"must not have more than {MAX_STRUCTURED_CHARS} values")
        inner: list[Any] = []
        for each in level:
            if isinstance(each, Mapping):
                inner += each.values()
            elif isinstance(each, list | tuple):
                inner += each
        level, depth = inner, depth + 1


def _check_brackets(param: str, text: str) -> None:
    """Reject brackets nested beyond MAX_DEPTH; a bound that also counts brackets in strings."""
    depth = 0
    for char in text:
        if char in "([{":
            depth += 1
            if depth > MAX_DEPTH:
                raise invalid_param(param, f"must not nest brackets deeper than {MAX_DEPTH} levels")
        elif char in ")]}" and depth:
            depth -= 1

"""Checks of rewritten JSON Schemas: the grammar accepts and rejects what the original schema does."""

import json
import random
from collections.abc import Sequence
from typing import Any

from jsonschema import Draft202012Validator

from chairlift.engine.structured.grammar_matcher import GrammarMatcher
from chairlift.engine.structured.json_schema.lowering import lower
from support_grammars import EOS, allowed_tokens, grammar_of

CLOSING = frozenset(b'"]}')


def accepts(grammar: GrammarMatcher, value: Any) -> bool:
    """Return whether a grammar over bytes allows a value as compact JSON text."""
    grammar = grammar.copy()
    for token in json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode():
        if grammar.is_terminated or token not in allowed_tokens(grammar):
            return False
        grammar.advance(token)
    return grammar.is_terminated or EOS in allowed_tokens(grammar)


def random_output(grammar: GrammarMatcher, seed: int, max_bytes: int = 600) -> Any:
    """Return a random value that a grammar allows, or None if it gets longer than `max_bytes`."""
    grammar, rng, output = grammar.copy(), random.Random(seed), bytearray()
    usual_bytes = rng.choice((0, 5, 15, 40))
    while not grammar.is_terminated:
        tokens = sorted(allowed_tokens(grammar))
        choices = [token for token in tokens if token < 256 and token not in b" \n\r\t"]
        if EOS in tokens and (not choices or len(output) > usual_bytes or rng.random() < 0.5):
            break
        closing = [token for token in choices if token in CLOSING]
        if closing and len(output) > usual_bytes and rng.random() < 0.9:
            choices = closing
        output.append(rng.choice(choices))
        grammar.advance(output[-1])
        if len(output) > max_bytes:
            return None
    return json.loads(output)


def check_outputs(schema: Any, *, count: int = 8) -> GrammarMatcher:
    """Compile a schema and validate random outputs of its grammar against it. Returns the grammar."""
    grammar, validator = grammar_of(json_schema=schema), Draft202012Validator(schema)
    for seed in range(count):
        value = random_output(grammar, seed)
        assert value is None or validator.is_valid(value), value
    return grammar


def check(schema: Any, matching: Sequence[Any], failing: Sequence[Any], lost: Sequence[Any] = ()) -> None:
    """Check a schema with values that match it, values that fail it, and matching ones that the grammar lacks."""
    grammar, validator = check_outputs(schema), Draft202012Validator(schema)
    assert [value for value in (*matching, *lost) if not validator.is_valid(value)] == []
    assert [value for value in failing if validator.is_valid(value)] == []
    assert [value for value in matching if not accepts(grammar, value)] == []
    assert [value for value in (*failing, *lost) if accepts(grammar, value)] == []


def rejection(schema: Any) -> str:
    """Return the message with which a schema is rejected."""
    try:
        lower(schema, strict=True)
    except ValueError as error:
        return str(error)
    raise AssertionError("the schema is accepted")

"""Grammars over bytes for tests: what a mask allows, and random outputs that it allows."""

import random
from collections.abc import Callable

import numpy as np

from chairlift.core.structured_output import StructuredOutput
from chairlift.engine.structured.grammar import BITS, Grammar
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer
from chairlift.engine.structured.llguidance_source import make_matcher, make_tokenizer, source_of
from chairlift.text.tokenizer import ByteTokenizer

EOS = 257
VOCAB_SIZE = 260
VOCABULARY = GrammarTokenizer(ByteTokenizer().serialized().encode(), (EOS,))


def grammar_of(**structure: object) -> Grammar:
    """Compile a structure over bytes."""
    tokenizer = make_tokenizer(VOCABULARY, VOCAB_SIZE)
    matcher = make_matcher(source_of(StructuredOutput(**structure)), tokenizer)
    assert not matcher.is_error(), matcher.get_error()
    return Grammar(matcher, -(-tokenizer.vocab_size // BITS))


def allowed(grammar: Grammar) -> set[int]:
    """Return the tokens that may come next."""
    row = np.zeros(grammar.width, np.int32)
    grammar.fill(row)
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


def written(grammar: Grammar, pick: Callable[[list[int]], int], longest: int = 4000) -> bytes:
    """Write an output, each byte picked from those allowed, until the structure is complete."""
    output = bytearray()
    while not grammar.is_terminated and len(output) < longest:
        token = pick(sorted(allowed(grammar)))
        if token == EOS:
            return bytes(output)
        grammar.advance(token)
        output.append(token)
    assert grammar.is_terminated, "the output did not end"
    return bytes(output)


def at_random(seed: int) -> Callable[[list[int]], int]:
    """Pick a random allowed token."""
    return random.Random(seed).choice

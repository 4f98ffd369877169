"""Grammars over bytes: the tokens that a mask allows, and random outputs."""

import random
from collections.abc import Callable

import numpy as np

from chairlift.core.structured_output import StructuredOutput
from chairlift.engine.structured.grammar_matcher import BITS, GrammarMatcher
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer
from chairlift.engine.structured.llguidance_adapter import make_matcher, make_tokenizer, source_of
from chairlift.text.byte_tokenizer import ByteTokenizer

EOS = 257
VOCAB_SIZE = 260
VOCABULARY = GrammarTokenizer(ByteTokenizer().serialized().encode(), (EOS,))


def grammar_of(**structure: object) -> GrammarMatcher:
    """Compile a structured output to a grammar over bytes."""
    tokenizer = make_tokenizer(VOCABULARY, VOCAB_SIZE)
    matcher = make_matcher(source_of(StructuredOutput(**structure)), tokenizer)
    assert not matcher.is_error(), matcher.get_error()
    return GrammarMatcher(matcher, -(-tokenizer.vocab_size // BITS))


def allowed_tokens(grammar: GrammarMatcher) -> set[int]:
    """Return the tokens that the grammar allows next."""
    row = np.zeros(grammar.width, np.int32)
    grammar.fill(row)
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


def generate_output(grammar: GrammarMatcher, pick: Callable[[list[int]], int], longest: int = 4000) -> bytes:
    """Generate an output until it is complete; `pick` chooses each byte from the allowed ones."""
    output = bytearray()
    while not grammar.is_terminated and len(output) < longest:
        token = pick(sorted(allowed_tokens(grammar)))
        if token == EOS:
            return bytes(output)
        grammar.advance(token)
        output.append(token)
    assert grammar.is_terminated, "the output did not end"
    return bytes(output)


def random_pick(seed: int) -> Callable[[list[int]], int]:
    """Return a function that picks a random allowed token."""
    return random.Random(seed).choice

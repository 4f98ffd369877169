"""ForcedTokensDrafter: the tokens that a grammar leaves no choice about."""

from chairlift.engine.drafters.forced_tokens import ForcedTokensDrafter
from chairlift.engine.structured.grammar_matcher import GrammarMatcher
from support_drafters import make_sequence
from support_grammars import grammar_of


def propose(grammar: GrammarMatcher | None, limit: int = 8) -> bytes:
    return bytes(ForcedTokensDrafter().propose(make_sequence([1, 2], grammar=grammar), limit))


def test_forced_tokens_are_proposed_up_to_the_next_choice() -> None:
    grammar = grammar_of(regex="abc(d|e)fgh")
    assert propose(grammar) == b"abc" and propose(grammar, 2) == b"ab"
    for token in b"abc":
        grammar.advance(token)
    assert propose(grammar) == b""
    grammar.advance(ord("e"))
    assert propose(grammar) == b"fgh"


def test_a_sequence_without_a_grammar_has_none() -> None:
    assert propose(None) == b""


def test_none_are_proposed_while_the_grammar_lacks_a_sample() -> None:
    sequence = make_sequence([1, 2], grammar=grammar_of(regex="abc"))
    sequence.num_pending_samples = 1
    assert not ForcedTokensDrafter().propose(sequence, 8)

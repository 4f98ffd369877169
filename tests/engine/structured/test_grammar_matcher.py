"""GrammarMatcher: follows one output, and its errors reach no other grammar."""

import time
from concurrent.futures import Future

import numpy as np
import pytest

from chairlift.core.errors import InvalidRequest, StructuredOutputFailed, StructuredOutputTooComplex
from chairlift.engine.structured.grammar_matcher import (
    MAX_ERROR_CHARS,
    MAX_WAIT_SECONDS,
    GrammarMatcher,
    MaskBatch,
    _error_of,
    short_message,
)
from chairlift.engine.structured.mask_worker import MaskWorker
from support_grammars import allowed_tokens, grammar_of
from support_shares import for_each


def test_copies_go_their_own_ways() -> None:
    first = grammar_of(regex="a*b")
    first.advance(ord("a"))
    second = first.copy()
    second.advance(ord("b"))
    assert second.is_terminated and not first.is_terminated
    assert allowed_tokens(first) == {ord("a"), ord("b")}


def test_drafts_are_followed_up_to_the_first_that_is_not_allowed_or_is_final() -> None:
    grammar = grammar_of(regex="a*b")
    for drafts, count in ((b"aaa", 3), (b"aaxa", 2), (b"aab", 2), (b"b", 0), (b"", 0)):
        copies = grammar.after_each(drafts)
        assert len(copies) == count
        assert all(allowed_tokens(copy) == {ord("a"), ord("b")} for copy in copies)
    assert grammar.pending_mask is None and allowed_tokens(grammar) == {ord("a"), ord("b")}


def test_forced_tokens_end_at_a_choice_and_change_no_mask() -> None:
    schema = {"type": "object", "properties": {"name": {"enum": ["ab", "ac"]}}, "required": ["name"]}
    for source in ({"json_schema": schema}, {"regex": "ab(cd|ce)fg"}, {"regex": "[ab]c"}):
        first, second = grammar_of(**source), grammar_of(**source)
        num_forced = 0
        while not first.is_terminated:
            forced = first.forced_tokens()
            allowed = sorted(allowed_tokens(first))
            assert allowed == sorted(allowed_tokens(second)) and (not forced or forced[0] in allowed)
            assert len(first.after_each(forced)) >= len(forced) - 1, "the last one may be final"
            num_forced += len(forced)
            first.advance(allowed[-1])
            second.advance(allowed[-1])
        assert num_forced and first.forced_tokens() == ()


def test_a_grammar_that_has_failed_forces_nothing() -> None:
    grammar = grammar_of(regex="abc")
    with pytest.raises(StructuredOutputFailed):
        grammar.advance(ord("x"))
    assert grammar.forced_tokens() == ()


def test_an_error_of_the_library_forces_nothing_and_fails_nothing() -> None:
    class Broken:
        def is_stopped(self) -> bool:
            return False

        def deep_copy(self) -> "Broken":
            raise RuntimeError("Already mutably borrowed")

    grammar = GrammarMatcher(Broken(), 1)  # type: ignore[arg-type]
    assert grammar.forced_tokens() == ()
    grammar.check()


def test_a_grammar_whose_mask_takes_long_guesses_nothing_until_it_is_done() -> None:
    grammar = grammar_of(regex="ab*c")
    batch = MaskBatch(np.zeros((1, grammar.width), np.int32))
    batch.done = Future()
    grammar.pending_mask = (batch, 0)
    started = time.perf_counter()
    assert grammar.forced_tokens() == () and time.perf_counter() - started >= MAX_WAIT_SECONDS
    assert grammar.after_each(b"ab") == ()
    batch.done.set_result(None)
    assert grammar.forced_tokens() == (ord("a"),) and len(grammar.after_each(b"ab")) == 2
    assert grammar.pending_mask is not None


def test_grammars_may_be_copied_while_a_thread_computes_their_masks() -> None:
    """The library raises RuntimeError for a matcher that another thread uses."""
    names = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(300)}}
    worker, grammar = MaskWorker(), grammar_of(json_schema=names)
    try:
        for token in b'{"p100":"':
            worker.prefetch([grammar])
            grammar.forced_tokens()
            grammar.after_each([token])
            with worker.for_step(np.zeros(1, np.int32), [grammar]):
                pass
            assert len(grammar.after_each([token])) == 1
            grammar.advance(token)
    finally:
        worker.stop()


def test_a_mask_that_fails_after_drafts_allows_no_token() -> None:
    (copy,) = grammar_of(regex="ab").after_each(b"a")
    with pytest.raises(StructuredOutputFailed):
        copy.advance(ord("x"))
    row = np.ones(copy.width, np.int32)
    copy.fill(row)
    assert not row.any()
    assert grammar_of(regex="ab").after_each(b"a")[0].is_after_drafts


def test_a_token_that_is_not_allowed_fails_and_goes_on_failing() -> None:
    grammar = grammar_of(regex="ab")
    with pytest.raises(StructuredOutputFailed, match="cannot be followed at token 120"):
        grammar.advance(ord("x"))
    with pytest.raises(StructuredOutputFailed, match="cannot be followed at token 120"):
        grammar.advance(ord("a"))
    row = np.zeros(grammar.width, np.int32)
    grammar.fill(row)
    assert (row == -1).all()


@pytest.mark.full
def test_a_structure_that_is_too_costly_to_follow_is_found_out_at_the_next_token() -> None:
    many = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(5000)}}
    grammar = grammar_of(json_schema=many)
    row = np.zeros(grammar.width, np.int32)
    grammar.fill(row)
    assert not (row == -1).all()
    with pytest.raises(StructuredOutputTooComplex, match="Current row has 19999 items; max is 10000"):
        grammar.advance(ord("{"))
    with pytest.raises(StructuredOutputTooComplex, match="Current row has"):
        grammar.check()


@pytest.mark.full
def test_two_thousand_optional_properties_are_followed() -> None:
    many = {"type": "object", "properties": {f"p{number}": {"type": "integer"} for number in range(2000)}}
    grammar = grammar_of(json_schema=many)
    for token in b'{"p7":1,"p1500":2,"p1999":3}':
        assert token in allowed_tokens(grammar)
        grammar.advance(token)
    assert grammar.is_terminated


def test_tokens_that_were_delivered_are_taken_or_refused() -> None:
    grammar = grammar_of(regex="abc").resume(b"ab")
    assert allowed_tokens(grammar) == {ord("c")} and not grammar.is_terminated
    assert grammar_of(regex="abc").resume(b"abc").is_terminated
    with pytest.raises(InvalidRequest, match="token 99 is not allowed"):
        grammar_of(regex="abc").resume(b"ac")


@pytest.mark.full
def test_tokens_that_cost_too_much_to_take_again_are_not_said_to_break_the_structure() -> None:
    many = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(5000)}}
    with pytest.raises(StructuredOutputTooComplex, match="too complex to follow"):
        grammar_of(json_schema=many).resume(b"{")


@for_each(("text", "limit"), [
    ("Parser Error: Current row has 20007 items; max is 10000; consider", "Current row has 20007 items; max is 10000"),
    ("parser error: Too many items (limit 50000; ff_tokens); try", "Too many items (limit 50000"),
    ("lexer error: too many expressions constructed", "too many expressions constructed"),
    ("too many states: 50001 >= 50000", "too many states: 50001"),
    ("Parser Error: token 120 doesn't satisfy the grammar", None), ("PanicException: a fault", None), ("", None),
])  # fmt: skip
def test_only_an_exceeded_limit_is_the_fault_of_the_request(text: str, limit: str | None) -> None:
    error = _error_of(text)
    assert isinstance(error, StructuredOutputTooComplex) is (limit is not None)
    assert error.details.get("reason") == limit


def test_an_output_that_may_be_empty_may_end_at_once() -> None:
    assert 257 in allowed_tokens(grammar_of(regex="a?"))


def test_long_reports_of_the_library_become_one_line() -> None:
    assert short_message("a\n  b\t c\n<non-verbose/>") == "a b c"
    assert len(short_message("x" * 10_000)) == MAX_ERROR_CHARS + 4
    assert short_message("at 1(2): not\n  known\n   1 | start: x\n      ^\n") == "at 1(2): not known"
    assert short_message(f"the start {'x' * 1000} the end").endswith("xx the end"), "a reason may be at the end"


def test_a_token_goes_on_ends_or_fails_and_is_taken_once() -> None:
    grammar = grammar_of(regex="abc?")
    assert grammar.try_advance(ord("a")) and allowed_tokens(grammar) == {ord("b")}
    assert grammar.try_advance(ord("b")), "c may follow"
    assert not grammar.try_advance(ord("c"))
    grammar.advance(ord("c"))
    assert grammar.is_terminated
    broken = grammar_of(regex="ab")
    assert not broken.try_advance(ord("x"))
    with pytest.raises(StructuredOutputFailed, match="cannot be followed at token 120"):
        broken.advance(ord("x"))

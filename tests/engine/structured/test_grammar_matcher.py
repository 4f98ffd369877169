"""GrammarMatcher: follows one output, and its errors reach no other grammar."""

import time
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

from chairlift.core.errors import InvalidRequest, StructuredOutputFailed, StructuredOutputTooComplex
from chairlift.engine.structured.grammar_matcher import MAX_ERROR_CHARS, MaskBatch, _error_of, short_message
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


def test_a_copy_waits_for_the_mask_that_another_thread_computes() -> None:
    grammar = grammar_of(regex="a*b")
    batch = MaskBatch(np.empty((1, grammar.width), np.int32))
    batch.done = Future()
    grammar.pending_mask = (batch, 0)
    with ThreadPoolExecutor(2) as threads:
        copies = [threads.submit(lambda: grammar.after_each(b"aa")), threads.submit(lambda: (grammar.copy(),))]
        time.sleep(0.02)
        assert not any(each.done() for each in copies)
        batch.done.set_result(None)
        assert [len(each.result(timeout=10)) for each in copies] == [2, 1]


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
